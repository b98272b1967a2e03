-- Puts back versions that lie in the change log and that the hot tier may have lost (Spec: §14.4).
--
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:gtail
--   All other keys are made from the hash tag of KEYS[1], hence lie in the same slot.
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] highest offset of the change log that this covers, -1: more follows
-- ARGV[5] msgpack: list of {tenant:conversation, version, member rows {user, row, ...}, version rows
--   {version, row, ...}, bitmaps {field, bytes, ...}, head {field, value, ...}, whether the log has it}
-- Answer: how many versions were missing. A version that is there is left alone.

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local base = string.sub(KEYS[1], 1, -6)

local function index_members(c, rows)
  local come, go = {}, {}
  for at = 1, #rows, 2 do
    if string.sub(rows[at + 1], 1, 1) == 'A' then
      come[#come + 1] = '0'
      come[#come + 1] = rows[at]
    else
      go[#go + 1] = rows[at]
    end
  end
  in_slices('ZADD', base .. 'gi:' .. c, come)
  in_slices('ZREM', base .. 'gi:' .. c, go)
end

local missing = 0
for _, change in ipairs(cmsgpack.unpack(ARGV[5])) do
  local c, version = change[1], change[2]
  local key = base .. 'c:' .. c
  if tonumber(redis.call('HGET', key, 'mv') or '0') < version then
    missing = missing + 1
    in_slices('HSET', base .. 'gm:' .. c, change[3])
    index_members(c, change[3])
    in_slices('HSET', base .. 'gv:' .. c, change[4])
    in_slices('HSET', base .. 'gb:' .. c, change[5])
    in_slices('HSET', key, change[6])
    redis.call('HSET', key, 'mv', string.format('%.0f', version), 'token', '')
    if not change[7] then redis.call('HSET', base .. 'gpend', c, string.format('%.0f', version)) end
  end
end
covered(KEYS[3], ARGV[4])
return missing
