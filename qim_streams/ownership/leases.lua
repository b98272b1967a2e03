-- Leases by compare-and-set. Nothing is decided by a clock: the server's expiry is the only time there is.
--
-- KEYS[1] {resource}:lease, a hash {node, boot, address} with an expiry  KEYS[2] {resource}:epoch
-- KEYS[3] {resource}:run, the run of the server in which the last grant was made
-- KEYS[4] {s:k}:w  KEYS[5] {s:k}:epochs, hash epoch -> EpochBoundary    acquire and raise of a MailboxShard only
-- ARGV[1] acquire | renew | release | raise  ARGV[2] node  ARGV[3] boot
--   acquire: ARGV[4] ttl ms  ARGV[5] address  ARGV[6] boundaries kept
--            ARGV[7] first epoch, 0: the clock's seconds  -> {1, epoch} granted, or {0, epoch, node, boot, address, left ms}
--   renew:   ARGV[4] ttl ms  ARGV[5] epoch    -> 1 still ours and extended, else 0
--   release: ARGV[4] epoch                    -> 1 given up, else 0
--   raise:   ARGV[4] epoch  ARGV[5] an epoch that a log has seen  ARGV[6] boundaries kept
--            -> the new epoch, above both, or 0: not ours
-- The epoch never goes down and is never deleted. Spec: §11.
--
-- An epoch is never given twice, whatever the server forgot (docs/decisions/0013-lost-hot-tier.md):
-- * one that is gone begins again at the clock's seconds, above any that was counted up since;
-- * a server that was started anew may have lost its last grants, so the next one leaves STEP numbers out.

local STEP = 16
local UNKNOWN = '9007199254740991' -- how far W has to come before it means anything: the owner will say
local NOTHING = '\32\255\255\255\255\255\255\255\255'
local action, node, boot = ARGV[1], ARGV[2], ARGV[3]
local holder = redis.call('HMGET', KEYS[1], 'node', 'boot', 'address')
local epoch = redis.call('GET', KEYS[2]) or '0'
local ours = holder[1] == node and holder[2] == boot

if action == 'renew' then
  if not ours or epoch ~= ARGV[5] then return 0 end
  return redis.call('PEXPIRE', KEYS[1], ARGV[4])
end

if action == 'release' then
  if not ours or epoch ~= ARGV[4] then return 0 end
  return redis.call('DEL', KEYS[1])
end

-- Note W as it stands for the epochs behind `before` up to `granted`: in the step that fences the owner before,
-- so nobody can have seen W higher under an older epoch. A number that was left out may have been given and
-- lost: W stands for it, too.
local function note_boundaries(before, granted, kept, now)
  if not KEYS[4] then return end
  local w = redis.call('HGET', KEYS[4], 'w') or NOTHING
  local boundary = struct.pack('>I8', now[1] * 1000 + math.floor(now[2] / 1000)) .. w
  for number = math.max(before, granted - kept) + 1, granted do
    redis.call('HSET', KEYS[5], string.format('%.0f', number), boundary)
    redis.call('HDEL', KEYS[5], string.format('%.0f', number - kept))
  end
end

if action == 'raise' then
  if not ours or epoch ~= ARGV[4] then return 0 end
  local before = tonumber(epoch)
  local granted = math.max(before, tonumber(ARGV[5])) + 1
  redis.call('SET', KEYS[2], string.format('%.0f', granted))
  note_boundaries(before, granted, tonumber(ARGV[6]), redis.call('TIME'))
  return granted
end

-- A newer boot of the same node holds the node's lock, so the process of the older boot is dead.
local free = not holder[1] or (holder[1] == node and tonumber(holder[2]) < tonumber(boot))
if not ours and not free then
  return {0, tonumber(epoch), holder[1], holder[2], holder[3], redis.call('PTTL', KEYS[1])}
end

local granted, now = tonumber(epoch), redis.call('TIME')
if not ours or granted == 0 then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  local before, run_before = granted, redis.call('GET', KEYS[3])
  if before == 0 then
    granted = math.max(tonumber(ARGV[7]), 1)
    if ARGV[7] == '0' then granted = tonumber(now[1]) end
    before = granted - 1
    if KEYS[4] then redis.call('HSET', KEYS[4], 'promised', UNKNOWN) end
  elseif run_before and run_before ~= run then
    granted = before + STEP
  else
    granted = before + 1
  end
  redis.call('SET', KEYS[2], string.format('%.0f', granted))
  redis.call('SET', KEYS[3], run)
  note_boundaries(before, granted, tonumber(ARGV[6]), now)
end
redis.call('HSET', KEYS[1], 'node', node, 'boot', boot, 'address', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {1, granted}
