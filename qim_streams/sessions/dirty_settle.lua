-- Take states off the list, each unless it was changed again.
-- KEYS[1] {q:tenant:lane}:dirty   ARGV: member, version, ...
local call = redis.call
for at = 1, #ARGV, 2 do
  local version = call('ZSCORE', KEYS[1], ARGV[at])
  if version and tonumber(version) == tonumber(ARGV[at + 1]) then call('ZREM', KEYS[1], ARGV[at]) end
end
return 0
