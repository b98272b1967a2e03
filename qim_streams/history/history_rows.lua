-- Message records of a conversation by number.
-- KEYS[1] any key of the Outbox partition (its hash tag names the slot)
-- ARGV[1] tenant:conversation  ARGV[2..] low, high, low, high, ... both inclusive
-- Answer: {last number given out, record or nil, ...} in the order of the numbers

local base = string.match(KEYS[1], '^{[^}]*}:')
local found = {redis.call('HGET', base .. 'c:' .. ARGV[1], 'seq') or '0'}
for at = 2, #ARGV, 2 do
  local names = {}
  for seq = tonumber(ARGV[at]), tonumber(ARGV[at + 1]) do names[#names + 1] = string.format('%.0f', seq) end
  for _, row in ipairs(redis.call('HMGET', base .. 'r:' .. ARGV[1], unpack(names))) do
    found[#found + 1] = row
  end
end
return found
