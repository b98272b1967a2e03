-- The highest Outbox offset that was ever confirmed, and the epoch of the last barrier up to there; nil each.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:tail  KEYS[3] {ob:p}:fence
-- ARGV[1] epoch

return fenced(KEYS[1], ARGV[1]) or redis.call('MGET', KEYS[2], KEYS[3])
