-- Tasks of a slot and provider that are over, and those that wait. What is not queued any more is left alone.
-- KEYS: due, task, try, out, over, sent (zset id -> when it may be forgotten: those handed over).
-- ARGV: when what is over may be forgotten, how many are over, then per task that is over: id, sent (0 or 1),
--       then per waiting one: id, due, counted (0 or 1). Answers how many were over.
local forget, count, over = ARGV[1], tonumber(ARGV[2]), 0
for i = 3, 2 + 2 * count, 2 do
  local id = ARGV[i]
  if redis.call('HDEL', KEYS[2], id) == 1 then
    over = over + 1
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[3], id)
    redis.call('HDEL', KEYS[4], id)
    redis.call('ZADD', KEYS[5], forget, id)
    if ARGV[i + 1] == '1' then
      redis.call('ZADD', KEYS[6], forget, id)
    end
  end
end
for i = 3 + 2 * count, #ARGV, 3 do
  local id = ARGV[i]
  if redis.call('HEXISTS', KEYS[2], id) == 1 then
    redis.call('ZADD', KEYS[1], 'XX', ARGV[i + 1], id)
    redis.call('HDEL', KEYS[4], id)
    if ARGV[i + 2] == '1' then
      redis.call('HINCRBY', KEYS[3], id, 1)
    end
  end
end
return over
