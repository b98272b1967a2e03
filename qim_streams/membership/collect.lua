-- Deletes versions and bitmaps that nothing uses any more.
-- KEYS[1] {ob:p}:epoch  KEYS[2] head  KEYS[3] gv  KEYS[4] gb
-- ARGV[1] epoch  ARGV[2] oldest version kept from now on  ARGV[3] how many versions follow  then versions,
--   then bitmap fields

local refused = fenced(KEYS[1], ARGV[1])
if refused then return refused end

local versions, bitmaps = {}, {}
for at = 4, 3 + tonumber(ARGV[3]) do versions[#versions + 1] = ARGV[at] end
for at = 4 + tonumber(ARGV[3]), #ARGV do bitmaps[#bitmaps + 1] = ARGV[at] end
in_slices('HDEL', KEYS[3], versions)
in_slices('HDEL', KEYS[4], bitmaps)
redis.call('HSET', KEYS[2], 'oldest', ARGV[2])
return #versions
