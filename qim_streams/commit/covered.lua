-- The highest Outbox offset that was ever confirmed, or nil.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:tail
-- ARGV[1] epoch

return fenced(KEYS[1], ARGV[1]) or redis.call('GET', KEYS[2])
