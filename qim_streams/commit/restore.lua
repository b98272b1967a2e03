-- Puts back messages that lie in the Outbox and that the hot tier may have lost (Spec: §14.4).
--
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:tail
--   All other keys are made from the hash tag of KEYS[1], hence lie in the same slot.
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] dedup retention, ms  ARGV[5] highest offset of these records
-- ARGV[6] msgpack: list of {tenant:conversation, sender, client_message_id, seq, dedup row, record, change}
--   dedup row: digest 16, message_id 16, seq u64, membership version u64, committed_at u64, and of an edit
--   or recall its revision u16; digest and message_id only: dedup is not restored
--   change: of an edit or recall only: {kind, target seq, body, revision}
-- ARGV[7] epoch of the last barrier up to there
-- Answer: how many messages were missing. What is there stays as it is, but targets of edits and recalls
--   that have an earlier revision get this one; numbers only go up.

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local base = string.sub(KEYS[1], 1, -6)
local missing, fields_of, revised = 0, nil, nil
for _, message in ipairs(cmsgpack.unpack(ARGV[6])) do
  local c, seq, row = message[1], message[4], message[5]
  local id = string.sub(row, 17, 32)
  local key, seq_text = base .. 'c:' .. c, string.format('%.0f', seq)
  missing = missing + redis.call('HSETNX', base .. 'r:' .. c, seq_text, message[6])
  if #row > 32 then
    redis.call('SET', base .. 'd:' .. c .. ':' .. message[2] .. ':' .. message[3], row, 'PX', ARGV[4], 'NX')
  end
  if seq > tonumber(redis.call('HGET', key, 'seq') or '0') then
    -- Ids of a conversation grow with its seqs, so the highest seq has the last id.
    redis.call('HSET', key, 'seq', seq_text, 'last_id', id)
  end
  -- It is in the Outbox: the relay must not append it again, least of all after an edit has changed it.
  redis.call('HDEL', base .. 'pend', id)
  local change = message[7]
  if change then
    if not fields_of then fields_of, revised = operations() end
    local target_text = string.format('%.0f', change[2])
    local record = redis.call('HGET', base .. 'r:' .. c, target_text)
    local f = record and fields_of(record)
    if f and f[11] == 0 and (f[14] or 0) < change[4] then
      redis.call('HSET', base .. 'r:' .. c, target_text, revised(record, f, change[1], change[3], change[4]))
    end
  end
end
covered(KEYS[3], ARGV[5], base .. 'fence', ARGV[7])
return missing
