-- Conversations whose rows the change log may lack: {tenant:conversation, version, ...}.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:gpend
-- ARGV[1] epoch

return fenced(KEYS[1], ARGV[1]) or redis.call('HGETALL', KEYS[2])
