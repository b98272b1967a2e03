-- A user's registered devices. KEYS[1]: hash name -> "<version> <record>"; the name "." holds the settings.
-- ARGV: "put" name version record devices_max -> the name of the device that gave way, "" for none
--       "bury" name version record            -> 1, or 0 when another version (or none) is there
-- A newer version that is there stands. Numbers are milliseconds: exact in Lua.
local key, verb, name, version, record = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local function version_of(row)
  return tonumber(string.match(row, '^(%d+) ')) or 0
end
local row = redis.call('HGET', key, name)
if verb == 'bury' then
  if not row or version_of(row) ~= version then
    return 0
  end
  redis.call('HSET', key, name, string.format('%d ', version) .. record)
  return 1
end
if row and version_of(row) > version then
  return ''
end
local gone = ''
if not row and name ~= '.' and redis.call('HLEN', key) - redis.call('HEXISTS', key, '.') >= tonumber(ARGV[5]) then
  local least
  local rows = redis.call('HGETALL', key)
  for i = 1, #rows, 2 do
    local at = version_of(rows[i + 1])
    if rows[i] ~= '.' and (not least or at < least) then
      gone, least = rows[i], at
    end
  end
  redis.call('HDEL', key, gone)
end
redis.call('HSET', key, name, string.format('%d ', version) .. record)
return gone
