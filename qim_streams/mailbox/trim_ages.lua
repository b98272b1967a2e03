-- Note how far W had come at a time, and say up to which mailbox_seq entries are older than the retention.
--
-- KEYS[1] {s:k}:epoch   KEYS[2] {s:k}:ages, zset: W -> milliseconds when W had reached it
-- ARGV[1] epoch of the caller   ARGV[2] now, ms   ARGV[3] W   ARGV[4] retention, ms   ARGV[5] ms between notes
-- Answer  the largest mailbox_seq that is old enough, -1 when none is known to be
--
-- What W covers was committed before W covered it, so a note is never too old for its entries. A note is
-- only ever missed or removed, which makes entries stay longer: so with a clock that went back, with
-- notes of a clock that was ahead, and with W below an earlier note after the store lost its last writes.
local epoch = redis.call('GET', KEYS[1]) or '0'
if epoch ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. epoch)
end
local now, retention, between = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. ARGV[2], '+inf')
local newest = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if tonumber(ARGV[3]) >= 0 and (not newest[2] or now - tonumber(newest[2]) >= between) then
  redis.call('ZADD', KEYS[2], 'NX', ARGV[2], ARGV[3])
end
local old = redis.call('ZREVRANGEBYSCORE', KEYS[2], now - retention, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
if not old[1] then return '-1' end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. old[2])
return old[1]
