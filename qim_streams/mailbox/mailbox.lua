-- Write mailbox entries of one shard and, unless this is a step of a larger lane, move its watermark.
--
-- KEYS[1] {s:k}:epoch   KEYS[2] {s:k}:w (hash: w, epoch, open, steps)
-- ARGV[1] epoch of the caller
-- ARGV[2] expected W, packed
-- ARGV[3] observed W, packed     ("" = a step: W stays)
-- ARGV[4] name of the open record, that is, of one lane of a record that is written in steps ("" = none)
-- ARGV[5] a step: its number; else: the number of steps that must stand
-- ARGV[6] entries a mailbox may hold (0 = unbounded)
-- ARGV[7] msgpack [[tenant, stream id, value, little-endian u32 ordinals], ...]
-- Answer  {W packed as it stands, steps of the open record as they stand (-1: W is not as expected)}
--
-- Mailbox keys are built here: they share the hash tag of KEYS, and 2,000 of them as arguments would
-- cost the caller more than the writes cost the server.
--
-- Why a repeated or interrupted write leaves no hole. Claim: in every mailbox the stored ids are a
-- prefix of the ids that the log assigns to it (below its trim). (1) A call writes a mailbox's entries
-- in ascending order and stops at the first error, so a torn call leaves a prefix. (2) W is compared as a
-- whole, all 64 lanes, so nothing is written into a lane unless it stands right before the first record
-- of the call that touches it, and up to there all of the lane is complete: this also holds when the
-- server lost its last writes, since W falls back with the entries. (3) What lies above W[lane] was left
-- by an interrupted call for the same records, and is asked for again in the same order, lane by lane:
-- who the members are is immutable, and a mailbox belongs to one lane. (4) An old owner is refused by the
-- epoch. Hence when XADD says that an id is not above the last one, the entry is there: skipping it is
-- right, and a missing one is always above the last id, where XADD can still put it.
local epoch = redis.call('GET', KEYS[1]) or '0'
if epoch ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. epoch)
end
local state = redis.call('HMGET', KEYS[2], 'w', 'open', 'steps', 'epoch')
local stands = state[1] or '\32\255\255\255\255\255\255\255\255'
local open, steps = state[2] or '', tonumber(state[3] or '0')
if tonumber(state[4] or '0') > tonumber(epoch) then
  return redis.error_reply('FENCED ' .. state[4])
end

local expected, record, count = ARGV[2], ARGV[4], tonumber(ARGV[5])
local is_step = ARGV[3] == ''
if is_step then
  if stands ~= expected then return {stands, -1} end
  if open ~= record then steps = 0 end
  if count > steps then return {stands, steps} end
else
  if stands ~= expected then return {stands, steps} end
  if record ~= '' and (open ~= record or steps < count) then return {stands, 0} end
end

local prefix = string.sub(KEYS[2], 1, -2)
local bound = tonumber(ARGV[6])
local slack = math.floor(bound / 10)

-- Cut a mailbox that grew over its bound between two mailbox_seqs, and say so in its trim watermark.
local function trim(tenant, ordinal, key, size)
  local rows = redis.call('XRANGE', key, '-', '+', 'COUNT', size - bound)
  local last = tonumber(string.match(rows[#rows][1], '^%d+'))
  redis.call('HSET', prefix .. 'trim:' .. tenant, ordinal, string.format('%.0f', last - 1))
  redis.call('XTRIM', key, 'MINID', string.format('%.0f-0', last + 1))
end

for _, group in ipairs(cmsgpack.unpack(ARGV[7])) do
  local tenant, id, value, ordinals = group[1], group[2], group[3], group[4]
  local base = prefix .. 'mb:' .. tenant .. ':'
  for at = 1, #ordinals, 4 do
    local ordinal = struct.unpack('<I4', ordinals, at)
    local key = base .. ordinal
    local added = redis.pcall('XADD', key, id, 'e', value)
    if type(added) == 'table' then
      if not string.find(added.err, 'equal or smaller', 1, true) then return added end
    else
      local size = redis.call('XLEN', key)
      if size == 1 then -- its oldest entry: trimming by age finds the mailbox by it (trim_aged.lua)
        redis.call('ZADD', prefix .. 'oldest', tonumber(string.match(id, '^%d+')) - 1, tenant .. ':' .. ordinal)
      elseif bound > 0 and size > bound + slack then
        trim(tenant, ordinal, key, size)
      end
    end
  end
end

if is_step then
  steps = math.max(steps, count + 1)
  redis.call('HSET', KEYS[2], 'epoch', epoch, 'open', record, 'steps', steps)
  return {stands, steps}
end
redis.call('HSET', KEYS[2], 'w', ARGV[3], 'epoch', epoch)
if record ~= '' then redis.call('HDEL', KEYS[2], 'open', 'steps') end
return {ARGV[3], 0}
