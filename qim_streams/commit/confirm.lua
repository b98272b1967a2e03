-- Takes messages off the pending list: their Outbox records are acknowledged.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:pend
-- ARGV[1] epoch  ARGV[2] message ids, 16 bytes each

local refused = fenced(KEYS[1], ARGV[1])
if refused then return refused end

local ids = {}
for at = 1, #ARGV[2], 16 do ids[#ids + 1] = string.sub(ARGV[2], at, at + 15) end
in_slices('HDEL', KEYS[2], ids)
return #ids
