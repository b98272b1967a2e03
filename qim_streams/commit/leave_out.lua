-- Raises the last numbers of conversations without messages: what lies between is left out for ever.
--
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:tail
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] msgpack: list of {tenant:conversation, seq}
-- Answer: how many were raised. Numbers only go up.

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local base, raised = string.sub(KEYS[1], 1, -6), 0
for _, one in ipairs(cmsgpack.unpack(ARGV[4])) do
  local key = base .. 'c:' .. one[1]
  if one[2] > tonumber(redis.call('HGET', key, 'seq') or '0') then
    redis.call('HSET', key, 'seq', string.format('%.0f', one[2]))
    raised = raised + 1
  end
end
return raised
