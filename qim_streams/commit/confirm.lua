-- Takes messages off the pending list: their Outbox records are acknowledged.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:pend
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] message ids, 16 bytes each  ARGV[5] highest Outbox offset among them, -1: none
--
-- Numbered although a repeat is harmless: a store that has lost writes must not be told how far the Outbox
-- goes, or the next owner would not look there for what is missing.

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local ids = {}
for at = 1, #ARGV[4], 16 do ids[#ids + 1] = string.sub(ARGV[4], at, at + 15) end
in_slices('HDEL', KEYS[3], ids)
local base = string.sub(KEYS[1], 1, -6)
covered(base .. 'tail', ARGV[5], base .. 'fence', ARGV[1])
return #ids
