-- Queue the tasks of a slot that are not known yet, then move the slot's position.
-- KEYS: over (zset id -> when it may be forgotten), task (hash id -> record), at (string),
--       then the due list (zset id -> when to take it) of each provider.
-- ARGV: now, most tasks waiting per provider, next offset (-1: leave it), where the caller knows the position to
--       stand, then per task: id, number of the provider (1: KEYS[4]), due, record.
-- Answers {queued, known, refused}; {-1, position} and nothing is done where the position stands lower than the
-- caller knows: the store lost its last writes, and tasks with them, so what lies in between comes first. One
-- that was emptied goes on: what it had sent is not known any more.
local now, most, next_offset, known_at = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local stands = tonumber(redis.call('GET', KEYS[3]) or '0')
if stands > 0 and stands < known_at then return {-1, stands} end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local queued, known, refused, size = 0, 0, 0, {}
for i = 5, #ARGV, 4 do
  local id, due = ARGV[i], KEYS[3 + tonumber(ARGV[i + 1])]
  if redis.call('ZSCORE', KEYS[1], id) or redis.call('HEXISTS', KEYS[2], id) == 1 then
    known = known + 1
  else
    size[due] = size[due] or redis.call('ZCARD', due)
    if size[due] >= most then
      refused = refused + 1
    else
      size[due] = size[due] + 1
      redis.call('ZADD', due, ARGV[i + 2], id)
      redis.call('HSET', KEYS[2], id, ARGV[i + 3])
      queued = queued + 1
    end
  end
end
if next_offset > stands then
  redis.call('SET', KEYS[3], string.format('%d', next_offset))
end
return {queued, known, refused}
