-- Start a projection epoch of a shard, by compare-and-set on the whole checkpoint.
--
-- KEYS[1] {qp:k}:at (hash: epoch, offset, target)
-- ARGV[1..3] expected epoch, offset, target ('' = there is none)   ARGV[4..6] the new ones
-- Answer  {epoch, offset, target} as they stand
local stands = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'target')
if (stands[1] or '') == ARGV[1] and (stands[2] or '') == ARGV[2] and (stands[3] or '') == ARGV[3] then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'offset', ARGV[5], 'target', ARGV[6])
  return {ARGV[4], ARGV[5], ARGV[6]}
end
return stands
