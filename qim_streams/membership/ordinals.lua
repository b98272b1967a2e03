-- Numbers users of one tenant and lane, in the order in which they come; a number is never given twice.
-- KEYS[1] {o:tenant:lane}:ids  KEYS[2] {o:tenant:lane}:names
-- ARGV: user, ...
-- Answer: the count (from 0) of each user

local counts = {}
for index, user in ipairs(ARGV) do
  local count = redis.call('HGET', KEYS[1], user)
  if not count then
    count = string.format('%.0f', redis.call('HLEN', KEYS[1]))
    redis.call('HSET', KEYS[1], user, count)
    redis.call('HSET', KEYS[2], count, user)
  end
  counts[index] = tonumber(count)
end
return counts
