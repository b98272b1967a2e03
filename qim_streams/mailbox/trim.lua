-- Remove a mailbox's entries up to a mailbox_seq and raise its trim watermark, in one step.
--
-- KEYS[1] {s:k}:epoch   KEYS[2] {s:k}:trim:<tenant>   KEYS[3] {s:k}:mb:<tenant>:<ordinal>
-- ARGV[1] epoch of the caller   ARGV[2] ordinal   ARGV[3] mailbox_seq, inclusive
-- ARGV[4] the lowest stream id that stays
-- Answer  the trim watermark that stands
local epoch = redis.call('GET', KEYS[1]) or '0'
if epoch ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. epoch)
end
local stands = redis.call('HGET', KEYS[2], ARGV[2])
if stands and tonumber(stands) >= tonumber(ARGV[3]) then return stands end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
redis.call('XTRIM', KEYS[3], 'MINID', ARGV[4])
return ARGV[3]
