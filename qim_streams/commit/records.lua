-- Message records of one Outbox partition.
-- KEYS[1] any key of the partition (its hash tag names the slot)
-- ARGV: tenant:conversation, seq, tenant:conversation, seq, ...
-- Answer: a record or nil for each pair

local base = string.match(KEYS[1], '^{[^}]*}:')
local found = {}
for at = 1, #ARGV, 2 do
  found[(at + 1) / 2] = redis.call('HGET', base .. 'r:' .. ARGV[at], ARGV[at + 1])
end
return found
