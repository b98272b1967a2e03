-- Messages that are not confirmed: {message_id, tenant NUL conversation NUL seq, ...}, in no order.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:pend
-- ARGV[1] epoch

return fenced(KEYS[1], ARGV[1]) or redis.call('HGETALL', KEYS[2])
