-- Rooms of one partition, for its owner. Spec: §10, §14.6.
--
-- KEYS[1] {rm:p}:epoch
-- create, put: KEYS[2] {rm:p}:r:<t>  KEYS[3] {rm:p}:list:<tenant>
--   ARGV[1] epoch  ARGV[2] create | put  ARGV[3] room id  ARGV[4] how long a closed room is remembered, ms (0: it is open)
--   ARGV[5..] fields and values, an empty value removes its field; `create` -> 0 when the room is there
-- checkpoint: KEYS[2] {rm:p}:at  KEYS[3..] {rm:p}:r:<t>
--   ARGV[1] epoch  ARGV[2] checkpoint  ARGV[3] log offset  ARGV[4] where the caller knows {rm:p}:at to stand
--   ARGV[5..] the room_seq of each -> where {rm:p}:at stood; nothing is done where that is lower than known:
--   the store lost its last checkpoints, and room_seqs with them, which are to come first
local current = redis.call('GET', KEYS[1])
if current ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. (current or '0'))
end

if ARGV[2] == 'checkpoint' then
  local stands = tonumber(redis.call('GET', KEYS[2]) or '0')
  if stands < tonumber(ARGV[4]) then return stands end
  for i = 3, #KEYS do
    local seq = redis.call('HGET', KEYS[i], 'seq')
    if seq and tonumber(seq) < tonumber(ARGV[i + 2]) then redis.call('HSET', KEYS[i], 'seq', ARGV[i + 2]) end
  end
  redis.call('SET', KEYS[2], ARGV[3])
  return stands
end

if ARGV[2] == 'create' then
  if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
  redis.call('HSET', KEYS[2], 'seq', '0')
elseif redis.call('EXISTS', KEYS[2]) == 0 then
  return 0
end
for i = 5, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
if ARGV[4] == '0' then
  redis.call('ZADD', KEYS[3], 0, ARGV[3])
else
  redis.call('ZREM', KEYS[3], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return 1
