-- What was done with a dead letter.
-- KEYS[1] {dl:p}:done  ARGV: offset, expected state ("open": none is stored), "<state> <ms>"
-- -> 1: the mark is set; 0: the state is another one
local now = redis.call('HGET', KEYS[1], ARGV[1])
local state = now and string.match(now, '^(%S+)') or 'open'
if state ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
