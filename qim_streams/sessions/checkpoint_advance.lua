-- Move the checkpoint of a shard, by compare-and-set on epoch and offset.
--
-- KEYS[1] {qp:k}:at (hash: epoch, offset, target)   ARGV[1] epoch   ARGV[2] expected   ARGV[3] observed
-- Answer  {epoch, offset, target} as they stand
local stands = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'target')
if stands[1] == ARGV[1] and stands[2] == ARGV[2] then
  redis.call('HSET', KEYS[1], 'offset', ARGV[3])
  stands[2] = ARGV[3]
end
return stands
