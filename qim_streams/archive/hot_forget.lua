-- Takes conversations off the list of those that have archived messages in the hot tier.
-- KEYS[1] {ob:p}:hot
-- ARGV[1] time, ms: what was noted after it stays  ARGV[2..] tenant:conversation

for at = 2, #ARGV do
  local noted = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if noted and tonumber(noted) <= tonumber(ARGV[1]) then redis.call('ZREM', KEYS[1], ARGV[at]) end
end
return #ARGV - 1
