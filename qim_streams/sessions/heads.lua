-- Conversations as one user meets them, with their newest records, RESERVED ones included.
-- KEYS[1] any key of the Outbox partition (its hash tag names the slot)
-- ARGV[1] user  ARGV[2] records of one conversation at most  ARGV[3] bytes of records after which only the
--   newest one of each conversation is read  ARGV[4..] tenant:conversation, tenant NUL conversation NUL,
--   number above which records are wanted
-- Answer for each: false, or {kind, name, other member of a direct chat or nil, his row or nil, dismissed,
--   history policy, last number given out, last number committed, last message id or nil, member row or nil, record or nil, ...}
--
-- Committed as in history_view.lua: what is pending may still vanish, counts, and is shown to nobody.
local call = redis.call
local base = string.match(KEYS[1], '^{[^}]*}:')
local user, most, bytes_left = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local pending

local function committed_of(allocated, last_id, place)
  if not last_id or call('HEXISTS', base .. 'pend', last_id) == 0 then return allocated end
  if not pending then
    pending = {}
    for _, one in ipairs(call('HVALS', base .. 'pend')) do pending[one] = true end
  end
  while allocated > 0 and pending[place .. string.format('%.0f', allocated)] do allocated = allocated - 1 end
  return allocated
end

local function peer_of(c)
  local rows = call('HGETALL', base .. 'gm:' .. c)
  for row = 1, #rows, 2 do
    if rows[row] ~= user then return rows[row], rows[row + 1] end
  end
  return false, false
end

local answers = {}
for at = 4, #ARGV, 3 do
  local c = ARGV[at]
  local head = call('HMGET', base .. 'c:' .. c, 'kind', 'seq', 'last_id', 'name', 'history_policy', 'dismissed')
  if head[1] then
    local high = tonumber(head[2] or '0')
    local committed = committed_of(high, head[3], ARGV[at + 1])
    local wanted = bytes_left > 0 and most or 1
    local low = math.max(1, high - wanted + 1, math.min(high, tonumber(ARGV[at + 2]) + 1))
    local peer, peer_row = false, false
    if head[1] == 'direct' then peer, peer_row = peer_of(c) end
    local answer = {
      head[1], head[4] or '', peer, peer_row, head[6] or '0', head[5] or '',
      string.format('%.0f', high), string.format('%.0f', committed), head[3], call('HGET', base .. 'gm:' .. c, user),
    }
    if high > 0 then
      local names = {}
      for seq = high, low, -1 do names[#names + 1] = string.format('%.0f', seq) end
      for _, row in ipairs(call('HMGET', base .. 'r:' .. c, unpack(names))) do
        answer[#answer + 1] = row
        if row then bytes_left = bytes_left - #row end
      end
    end
    answers[#answers + 1] = answer
  else
    answers[#answers + 1] = false
  end
end
return answers
