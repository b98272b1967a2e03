-- One step of trimming by age: the mailboxes whose oldest entries are at or below a mailbox_seq.
--
-- KEYS[1] {s:k}:epoch   KEYS[2] {s:k}:w   KEYS[3] {s:k}:oldest, zset: <tenant>:<ordinal> -> mailbox_seq
-- ARGV[1] epoch of the caller   ARGV[2] mailbox_seq, inclusive   ARGV[3] mailboxes, at most
-- ARGV[4] entries after which no further mailbox is begun
-- Answer  {mailboxes looked at (fewer than ARGV[3], and ARGV[4] not reached: it was the last step), entries}
--
-- A mailbox's trim watermark is raised to the last entry that goes, not to ARGV[2], so a device that has
-- everything keeps its cursor, however long ago that was. It is raised in the step that removes, so a
-- reader that looks at it after its rows knows whether they were whole. Nothing above W goes. A score is
-- at or below the oldest entry of its mailbox: writes at the other end of the stream leave it where it is.
local epoch = redis.call('GET', KEYS[1]) or '0'
if epoch ~= ARGV[1] then
  return redis.error_reply('FENCED ' .. epoch)
end

local up_to = tonumber(ARGV[2])
local packed = redis.call('HGET', KEYS[2], 'w')
if not packed then return {0, 0} end
for at = 2, #packed, 8 do
  up_to = math.min(up_to, (struct.unpack('>i8', packed, at)))
end

local prefix = string.sub(KEYS[2], 1, -2)
local function seq_of(row) return tonumber(string.match(row[1], '^%d+')) - 1 end

local function trim(member)
  local key = prefix .. 'mb:' .. member
  local last = redis.call('XREVRANGE', key, string.format('%.0f', up_to + 1), '-', 'COUNT', 1)[1]
  local removed = 0
  if last then
    local tenant, ordinal = string.match(member, '^(.*):(%d+)$')
    local trims, seq = prefix .. 'trim:' .. tenant, seq_of(last)
    if tonumber(redis.call('HGET', trims, ordinal) or '-1') < seq then
      redis.call('HSET', trims, ordinal, string.format('%.0f', seq))
    end
    removed = redis.call('XTRIM', key, 'MINID', string.format('%.0f-0', seq + 2))
  end
  local first = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  if first then
    redis.call('ZADD', KEYS[3], string.format('%.0f', seq_of(first)), member)
  else
    -- The stream forgets its last id with the key. All ids up to it are at or below W, where no record
    -- is written again.
    redis.call('DEL', key)
    redis.call('ZREM', KEYS[3], member)
  end
  return removed
end

local mailboxes, entries = 0, 0
local bound = string.format('%.0f', up_to)
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', bound, 'LIMIT', 0, ARGV[3])) do
  mailboxes, entries = mailboxes + 1, entries + trim(member)
  if entries >= tonumber(ARGV[4]) then break end
end
return {mailboxes, entries}
