-- Sessions of a user's devices.
-- KEYS[1]: hash device -> "<session_epoch> <last seen ms> <platform> <by>". Rows of two words are of before
--   platforms. platform "-": not stated; by: the device whose login ended this one's session, "-": none did.
-- ARGV: "open" device now_ms devices_max policy platform resumes
--         policy: all, platform or newest; resumes: epoch of the session that goes on, -1: somebody signs on
--         -> {new session_epoch, device, epoch, device, epoch, ...} of those whose sessions this one ended,
--            or {0, by}: the session that wants to go on was ended by the device `by`
--       "touch" device now_ms -> {newest session_epoch, by}, {0, "-"} for an unknown device
-- A new epoch is above the old one and not below the clock, so that a device whose row gave way
-- (the one unseen for longest, when there are too many) still gets a larger one when it returns.
-- Numbers are milliseconds: exact in Lua.
local key, verb, device, now = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local function parsed(row)
  local epoch, seen, rest = string.match(row, '^(%d+) (%d+)(.*)$')
  local platform, by = string.match(rest or '', '^ (%S+) (%S+)$')
  return tonumber(epoch) or 0, tonumber(seen) or 0, platform or '-', by or '-'
end

local function write(name, epoch, seen, platform, by)
  redis.call('HSET', key, name, string.format('%d %d %s %s', epoch, seen, platform, by))
end

local row = redis.call('HGET', key, device)
local epoch, _, platform, by = parsed(row or '')
if verb == 'touch' then
  if row then write(device, epoch, now, platform, by) end
  return {epoch, by}
end
local policy, resumes = ARGV[5], tonumber(ARGV[7])
if policy ~= 'all' and by ~= '-' and resumes >= 0 and resumes <= epoch then return {0, by} end
platform = ARGV[6]
local answer = {math.max(epoch + 1, now)}
local rows = (policy ~= 'all' or not row) and redis.call('HGETALL', key) or {}
local oldest, oldest_seen
for i = 1, #rows, 2 do
  local name = rows[i]
  local its_epoch, its_seen, its_platform, its_by = parsed(rows[i + 1])
  if not oldest_seen or its_seen < oldest_seen then oldest, oldest_seen = name, its_seen end
  if name ~= device and its_by == '-' and
    (policy == 'newest' or (policy == 'platform' and its_platform == platform)) then
    write(name, its_epoch, its_seen, its_platform, device)
    answer[#answer + 1], answer[#answer + 2] = name, its_epoch
  end
end
if not row and #rows / 2 >= tonumber(ARGV[4]) then redis.call('HDEL', key, oldest) end
write(device, answer[1], now, platform, '-')
return answer
