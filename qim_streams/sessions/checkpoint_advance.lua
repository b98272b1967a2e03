-- Move the checkpoint of a shard, by compare-and-set on epoch and offset.
--
-- KEYS[1] {qp:k}:at (hash: epoch, offset, target)   ARGV[1] epoch   ARGV[2] expected   ARGV[3] observed
-- ARGV[4] the server's run_id when the rows in between were written
-- Answer  {epoch, offset, target} as they stand; nothing when the server was started again since then: it may
--   have lost these rows and kept the checkpoint before them, so they are not to be covered
if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= ARGV[4] then
  return {false, false, false}
end
local stands = redis.call('HMGET', KEYS[1], 'epoch', 'offset', 'target')
if stands[1] == ARGV[1] and stands[2] == ARGV[2] then
  redis.call('HSET', KEYS[1], 'offset', ARGV[3])
  stands[2] = ARGV[3]
end
return stands
