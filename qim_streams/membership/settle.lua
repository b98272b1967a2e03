-- Takes conversations off the list of those whose rows the change log may lack.
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:gpend
-- ARGV[1] epoch  ARGV[2..] tenant:conversation, version, ...

local refused = fenced(KEYS[1], ARGV[1])
if refused then return refused end

local done = 0
for at = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[at]) == ARGV[at + 1] then
    done = done + redis.call('HDEL', KEYS[2], ARGV[at])
  end
end
return done
