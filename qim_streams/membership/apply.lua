-- Applies a list of membership changes of one Outbox partition.
--
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:gpend
--   All other keys are made from the hash tag of KEYS[1], hence lie in the same slot.
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] msgpack: list of changes, each {tenant:conversation, expected version, token, time u64 as bytes,
--   joins {user, ordinal, role letter, ...}, leaves {user, ...}, roles {user, role letter, ...},
--   bitmaps {shard, bytes, ...}, head {field, value, ...}}
-- Answer: for each change {head as a flat list of fields and values, user, row, ... of those it touches},
--   or nil when the version moved. Rows and head are of one moment: a later reading might find a store that
--   has lost the change by then.
--
-- A conversation's seq at this moment becomes the edge of the intervals (Spec: §4: versions and seq
-- allocation share one atomic zone).

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local EDGES_BYTES_MAX = 64 * 16 -- rules.INTERVALS_MAX intervals of two u64
local BLOCK = 64                -- rules.VERSION_BLOCK
local base = string.sub(KEYS[1], 1, -6)

-- Values of many fields of a hash, in order (HMGET in slices).
local function fields_of(key, names)
  local values, count = {}, #names
  for first = 1, count, 4000 do
    local slice = redis.call('HMGET', key, unpack(names, first, math.min(first + 3999, count)))
    for index = 1, math.min(4000, count - first + 1) do values[first + index - 1] = slice[index] end
  end
  return values
end

local function joined(edges, seq)
  if string.sub(edges, -8) == seq then return string.sub(edges, 1, -9) end -- nothing was said in between
  if #edges >= EDGES_BYTES_MAX then edges = string.sub(edges, 17) end
  return edges .. seq
end

local function left(edges, seq)
  if string.sub(edges, -8) == seq then return string.sub(edges, 1, -9) end -- an interval without messages
  return edges .. seq
end

local function add_members(c, joins, seq)
  local users, rows, index = {}, {}, {}
  for at = 1, #joins, 3 do users[#users + 1] = joins[at] end
  local before = fields_of(base .. 'gm:' .. c, users)
  for number, user in ipairs(users) do
    local at = number * 3 - 2
    local edges = before[number] and string.sub(before[number], 7) or ''
    rows[#rows + 1] = user
    rows[#rows + 1] = 'A' .. joins[at + 2] .. struct.pack('>I4', joins[at + 1]) .. joined(edges, seq)
    index[#index + 1] = '0'
    index[#index + 1] = user
  end
  in_slices('HSET', base .. 'gm:' .. c, rows)
  in_slices('ZADD', base .. 'gi:' .. c, index)
  return #users
end

local function take_out_members(c, leaves, seq)
  local rows = {}
  local before = fields_of(base .. 'gm:' .. c, leaves)
  for number, user in ipairs(leaves) do
    local row = before[number] -- there is one: the expected version has this user as a member
    rows[#rows + 1] = user
    rows[#rows + 1] = 'L' .. string.sub(row, 2, 6) .. left(string.sub(row, 7), seq)
  end
  in_slices('HSET', base .. 'gm:' .. c, rows)
  in_slices('ZREM', base .. 'gi:' .. c, leaves)
  return #leaves
end

local function set_roles(c, roles)
  for at = 1, #roles, 2 do
    local row = redis.call('HGET', base .. 'gm:' .. c, roles[at])
    redis.call('HSET', base .. 'gm:' .. c, roles[at],
      string.sub(row, 1, 1) .. roles[at + 1] .. string.sub(row, 3))
  end
end

-- The whole map of version `of`, folded from the rows of its block: {shard = bitmap version}.
local function whole_map(gv, of)
  local names = {}
  for version = math.max(1, of - of % BLOCK), of do names[#names + 1] = string.format('%.0f', version) end
  local map = {}
  for _, row in ipairs(fields_of(gv, names)) do
    for at = 9, #row, 12 do
      local shard, bitmap = struct.unpack('>I4I8', string.sub(row, at, at + 11))
      map[shard] = bitmap
    end
  end
  return map
end

local function write_version(c, version, time, bitmaps, map)
  local blobs = {}
  for at = 1, #bitmaps, 2 do
    local shard, blob = bitmaps[at], bitmaps[at + 1]
    map[shard] = blob ~= '' and version or 0
    if blob ~= '' then
      blobs[#blobs + 1] = string.format('%.0f:%.0f', shard, version)
      blobs[#blobs + 1] = blob
    end
  end
  local shards, row = {}, {time}
  for shard, bitmap in pairs(map) do
    if bitmap > 0 or version % BLOCK ~= 0 then shards[#shards + 1] = shard end
  end
  table.sort(shards) -- numbers
  for _, shard in ipairs(shards) do row[#row + 1] = struct.pack('>I4I8', shard, map[shard]) end
  redis.call('HSET', base .. 'gv:' .. c, string.format('%.0f', version), table.concat(row))
  in_slices('HSET', base .. 'gb:' .. c, blobs)
end

-- Head and rows as this change left them.
local function outcome(key, c, change)
  local users, answer = {}, {redis.call('HGETALL', key)}
  for at = 1, #change[5], 3 do users[#users + 1] = change[5][at] end
  for _, user in ipairs(change[6]) do users[#users + 1] = user end
  for at = 1, #change[7], 2 do users[#users + 1] = change[7][at] end
  local rows = fields_of(base .. 'gm:' .. c, users)
  for number, user in ipairs(users) do
    answer[#answer + 1] = user
    answer[#answer + 1] = rows[number]
  end
  return answer
end

local function apply(change)
  local c, expected, token = change[1], change[2], change[3]
  local key = base .. 'c:' .. c
  local v = redis.call('HMGET', key, 'mv', 'seq', 'active', 'token')
  if tonumber(v[1] or '0') ~= expected then
    return v[4] == token and outcome(key, c, change) -- our own change: an answer got lost
  end
  local seq, version = struct.pack('>I8', tonumber(v[2] or '0')), expected + 1
  -- Read before the first write: if a row is missing, the script stops and nothing was changed.
  local map = version % BLOCK == 0 and whole_map(base .. 'gv:' .. c, expected) or {}
  local active = tonumber(v[3] or '0') + add_members(c, change[5], seq) - take_out_members(c, change[6], seq)
  set_roles(c, change[7])
  write_version(c, version, change[4], change[8], map)
  local head = change[9]
  for _, item in ipairs({'mv', string.format('%.0f', version), 'active', string.format('%.0f', active),
    'token', token}) do
    head[#head + 1] = item
  end
  in_slices('HSET', key, head)
  redis.call('HSET', KEYS[3], c, string.format('%.0f', version))
  return outcome(key, c, change)
end

local answers = {}
for index, change in ipairs(cmsgpack.unpack(ARGV[4])) do answers[index] = apply(change) end
return answers
