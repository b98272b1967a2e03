-- Leases by compare-and-set. Nothing is decided by a clock: the server's expiry is the only time there is.
--
-- KEYS[1] {resource}:lease, a hash {node, boot, address} with an expiry  KEYS[2] {resource}:epoch
-- KEYS[3] {s:k}:w  KEYS[4] {s:k}:epochs, hash epoch -> EpochBoundary    acquire of a MailboxShard only
-- ARGV[1] acquire | renew | release  ARGV[2] node  ARGV[3] boot
--   acquire: ARGV[4] ttl ms  ARGV[5] address  ARGV[6] boundaries kept  -> {1, epoch} granted, or {0, epoch, node, boot, address, left ms}
--   renew:   ARGV[4] ttl ms  ARGV[5] epoch    -> 1 still ours and extended, else 0
--   release: ARGV[4] epoch                    -> 1 given up, else 0
-- The epoch never goes down and is never deleted. Spec: §11.

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

-- A newer boot of the same node holds the node's lock, so the process of the older boot is dead.
local free = not holder[1] or (holder[1] == node and tonumber(holder[2]) < tonumber(boot))
if not ours and not free then
  return {0, tonumber(epoch), holder[1], holder[2], holder[3], redis.call('PTTL', KEYS[1])}
end
local granted = ours and tonumber(epoch) or redis.call('INCR', KEYS[2])
if KEYS[3] and not ours then
  -- In the step that fences the owner before: nobody can have seen W higher under an older epoch.
  local now, w = redis.call('TIME'), redis.call('HGET', KEYS[3], 'w')
  local at_ms = struct.pack('>I8', now[1] * 1000 + math.floor(now[2] / 1000))
  redis.call('HSET', KEYS[4], granted, at_ms .. (w or '\32\255\255\255\255\255\255\255\255'))
  redis.call('HDEL', KEYS[4], granted - ARGV[6])
end
redis.call('HSET', KEYS[1], 'node', node, 'boot', boot, 'address', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {1, granted}
