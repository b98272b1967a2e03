-- Put back states of a user that the archive has and this store has not.
-- KEYS[1] uc  KEYS[2] pin
-- ARGV[1] restored field ('' = more follows), then conversation, state, pinned_at
local call = redis.call
for at = 2, #ARGV, 3 do
  if call('HSETNX', KEYS[1], ARGV[at], ARGV[at + 1]) == 1 and ARGV[at + 2] ~= '0' then
    call('ZADD', KEYS[2], ARGV[at + 2], ARGV[at])
  end
end
if ARGV[1] ~= '' then call('HSET', KEYS[1], ARGV[1], '1') end
return 0
