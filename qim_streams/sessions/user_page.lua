-- A stretch of a user's conversations with his states.
-- KEYS[1] convs  KEYS[2] uc  KEYS[3] pin  KEYS[4] wide  KEYS[5] last: keys of one user
-- ARGV[1] restored field  ARGV[2] limit  ARGV[3] activity ('' = from the top)  ARGV[4] conversation
-- Answer: {restored, how many there are, order of the user's last change, pinned, wide, rows}; each of the
--   lists is flat: conversation, activity, state
--
-- Order: activity, then id, both descending. Rows leave out the wide ones, whose place is in their heads.
local call = redis.call
local limit = tonumber(ARGV[2])
local wide, is_wide = call('SMEMBERS', KEYS[4]), {}
for _, name in ipairs(wide) do is_wide[name] = true end

local function described(names, scores)
  local found = {}
  for start = 1, #names, 1000 do
    local part = {}
    for at = start, math.min(start + 999, #names) do part[#part + 1] = names[at] end
    local states = call('HMGET', KEYS[2], unpack(part))
    for at, name in ipairs(part) do
      found[#found + 1] = name
      found[#found + 1] = scores and scores[start + at - 1] or call('ZSCORE', KEYS[1], name) or '0'
      found[#found + 1] = states[at]
    end
  end
  return found
end

local names, scores, offset = {}, {}, 0
local top = ARGV[3] == '' and '+inf' or ARGV[3]
while #names < limit do
  local got = call('ZRANGE', KEYS[1], top, '-inf', 'BYSCORE', 'REV', 'LIMIT', offset, limit, 'WITHSCORES')
  for at = 1, #got, 2 do
    local name, score = got[at], got[at + 1]
    local before = ARGV[3] == '' or tonumber(score) < tonumber(ARGV[3]) or name < ARGV[4]
    if before and not is_wide[name] and #names < limit then
      names[#names + 1], scores[#scores + 1] = name, score
    end
  end
  offset = offset + #got / 2
  if #got < 2 * limit then break end
end
return {
  call('HEXISTS', KEYS[2], ARGV[1]), call('ZCARD', KEYS[1]), call('GET', KEYS[5]) or '0',
  described(call('ZRANGE', KEYS[3], '+inf', '-inf', 'BYSCORE', 'REV')), described(wide), described(names, scores),
}
