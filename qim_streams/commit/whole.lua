-- Marks the partition as whole for this run of the server (`ownership.wholeness`).
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:whole
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] the run for which the owner has proved it; another one is not marked
-- Answer: 1 marked, 0 not
--
-- A numbered call: it is refused by a store that has lost an acknowledged one.

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if run ~= ARGV[4] then return 0 end
if redis.call('GET', KEYS[3]) ~= run then redis.call('SET', KEYS[3], run) end
return 1
