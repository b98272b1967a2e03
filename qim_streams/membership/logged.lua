-- The highest offset of the change log that was ever settled, or nil.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:gtail
-- ARGV[1] epoch

return fenced(KEYS[1], ARGV[1]) or redis.call('GET', KEYS[2])
