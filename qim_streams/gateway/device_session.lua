-- Sessions of a user's devices. KEYS[1]: hash device -> "<session_epoch> <last seen ms>".
-- ARGV: "open" device now_ms devices_max  -> the new session_epoch
--       "touch" device now_ms             -> the newest session_epoch, 0 for an unknown device
-- A new epoch is above the old one and not below the clock, so that a device whose row gave way
-- (the one unseen for longest, when there are too many) still gets a larger one when it returns.
-- Numbers are milliseconds: exact in Lua.
local key, verb, device, now = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local row = redis.call('HGET', key, device)
local epoch = row and tonumber(string.match(row, '^(%d+)')) or 0
if verb == 'touch' then
  if row then
    redis.call('HSET', key, device, string.format('%d %d', epoch, now))
  end
  return epoch
end
if not row and redis.call('HLEN', key) >= tonumber(ARGV[4]) then
  local oldest, seen
  local rows = redis.call('HGETALL', key)
  for i = 1, #rows, 2 do
    local at = tonumber(string.match(rows[i + 1], ' (%d+)$')) or 0
    if not seen or at < seen then
      oldest, seen = rows[i], at
    end
  end
  redis.call('HDEL', key, oldest)
end
epoch = math.max(epoch + 1, now)
redis.call('HSET', key, device, string.format('%d %d', epoch, now))
return epoch
