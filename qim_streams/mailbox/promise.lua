-- Say that W had come further before the store lost writes (Spec: §11 rule 2, §14.4).
--
-- KEYS[1] {s:k}:epoch   KEYS[2] {s:k}:w   KEYS[3] {s:k}:epochs
-- ARGV[1] epoch of the caller   ARGV[2] how far W had come, -1: nothing is owed
-- ARGV[3] mailbox_seq up to which the log itself is gone, -1: it is whole
-- ARGV[4] KeptPositions, empty: what old cursors mean is as it was
local epoch = redis.call('GET', KEYS[1]) or '0'
if epoch ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. epoch)
end
if ARGV[2] == '-1' then
  redis.call('HDEL', KEYS[2], 'promised')
else
  redis.call('HSET', KEYS[2], 'promised', ARGV[2])
end
if tonumber(ARGV[3]) > tonumber(redis.call('HGET', KEYS[2], 'floor') or '-1') then
  redis.call('HSET', KEYS[2], 'floor', ARGV[3])
end
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[3], 'kept', ARGV[4])
end
return 1
