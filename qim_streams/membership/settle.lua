-- Takes conversations off the list of those whose rows the change log may lack.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:gpend
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] highest offset of their rows in the change log, -1: none
-- ARGV[5..] tenant:conversation, version, ...

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local done = 0
for at = 5, #ARGV, 2 do
  if redis.call('HGET', KEYS[3], ARGV[at]) == ARGV[at + 1] then
    done = done + redis.call('HDEL', KEYS[3], ARGV[at])
  end
end
covered(string.sub(KEYS[1], 1, -6) .. 'gtail', ARGV[4])
return done
