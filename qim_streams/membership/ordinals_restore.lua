-- Puts back users of one tenant and lane whom the logs know (Spec: §14.4).
-- KEYS[1] {o:tenant:lane}:ids  KEYS[2] {o:tenant:lane}:names  KEYS[3] {o:tenant:lane}:next
-- ARGV: user, count, ...
-- Answer: how many were missing. What the logs say stands: bitmaps and mailboxes use these numbers.

local missing, above = 0, tonumber(redis.call('GET', KEYS[3]) or '0')
for at = 1, #ARGV, 2 do
  local user, count = ARGV[at], ARGV[at + 1]
  if redis.call('HGET', KEYS[1], user) ~= count then
    missing = missing + 1
    redis.call('HSET', KEYS[1], user, count)
    redis.call('HSET', KEYS[2], count, user)
  end
  above = math.max(above, tonumber(count) + 1)
end
redis.call('SET', KEYS[3], string.format('%.0f', above))
return missing
