-- What the archive may lack of a lane, oldest version first, with the states.
-- KEYS[1] {q:tenant:lane}:dirty   ARGV[1] limit
-- Answer: member, version, state or nil, ...
local call = redis.call
local base = string.sub(KEYS[1], 1, -6)
local got = call('ZRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
local found = {}
for at = 1, #got, 2 do
  local colon = string.find(got[at], ':', 1, true)
  found[#found + 1] = got[at]
  found[#found + 1] = got[at + 1]
  found[#found + 1] = call('HGET', base .. 'uc:' .. string.sub(got[at], 1, colon - 1), string.sub(got[at], colon + 1))
end
return found
