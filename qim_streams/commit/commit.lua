-- Decides and applies a list of messages of one Outbox partition. The same rule in Python: rules.py.
--
-- KEYS[1] {ob:p}:epoch  KEYS[2] {ob:p}:call  KEYS[3] {ob:p}:pend
--   All other keys are made from the hash tag of KEYS[1], hence lie in the same slot.
-- ARGV[1] epoch  ARGV[2] last call known to be applied  ARGV[3] number of this call
-- ARGV[4] dedup retention, ms  ARGV[5] message ids to confirm, 16 bytes each
-- ARGV[6] highest Outbox offset among those acknowledged, -1: none
-- ARGV[7] msgpack: list of {tenant:conversation, sender, client_message_id, fixed, record tail, change}
--   fixed: digest 16, candidate message_id 16, committed_at u64, flags u8 (1: refuse what is new,
--   2: it mentions everybody)
--   change: of an edit or recall only: {kind, target seq, body, window ms, admin window ms, archived record}
-- Answer: 47 bytes per message: status u8, message_id 16, seq u64, membership version u64,
--   committed_at u64, active members u32, revision that an edit or recall gave its target u16
--
-- Numbers are exact to 2^53: ids, digests and times are only moved as bytes and compared word by word.

local refused = fenced(KEYS[1], ARGV[1]) or numbered(KEYS[2], ARGV[1], ARGV[2], ARGV[3])
if refused then return refused end

local NEW, RESERVED, COMMITTED, CONFLICT, NO_CONVERSATION, NOT_MEMBER, DISMISSED, NOT_ALLOWED,
  RATE_LIMITED, CLOCK_BEHIND, EXHAUSTED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local NO_TARGET, NOT_A_MESSAGE, TARGET_COLD, TARGET_UNSETTLED, TARGET_RECALLED, NOT_YOURS, TOO_LATE,
  TOO_MANY_EDITS = 11, 12, 13, 14, 15, 16, 17, 18
local SEQ_MAX = 9007199254740991
local NO_ID = string.rep('\0', 16)
local NOTHING = string.rep('\0', 30)
local ACTIVE, MEMBER = 65, 109 -- 'A', 'm'

local call, sub, byte, char, pack, unpack_words = redis.call, string.sub, string.byte, string.char,
  struct.pack, struct.unpack
local base = sub(KEYS[1], 1, -6)
local heads_at, members_at, records_at, dedup_at = base .. 'c:', base .. 'gm:', base .. 'r:', base .. 'd:'
local retention = ARGV[4]
local heads, fresh, pending, answers = {}, {}, {}, {}

local function head_of(c)
  local head = heads[c]
  if not head then
    local v = call('HMGET', heads_at .. c, 'kind', 'seq', 'last_id', 'mv', 'send_policy', 'dismissed', 'active')
    head = {exists = v[1], seq = tonumber(v[2] or '0'), last_id = v[3] or NO_ID, mv = tonumber(v[4] or '0'),
      admins_only = v[5] == 'admins', dismissed = v[6] == '1', active = pack('>I4I2', tonumber(v[7] or '0'), 0),
      place = string.gsub(c, ':', '\0', 1) .. '\0', senders = {}}
    heads[c] = head
  end
  return head
end

-- The row of a member, false when there is none; asked once per sender.
local function row_of(c, head, sender)
  local row = head.senders[sender]
  if row == nil then
    row = call('HGET', members_at .. c, sender)
    head.senders[sender] = row
  end
  return row
end

local function is_above(a, b)
  local a1, a2, a3, a4 = unpack_words('>I4I4I4I4', a)
  local b1, b2, b3, b4 = unpack_words('>I4I4I4I4', b)
  if a1 ~= b1 then return a1 > b1 end
  if a2 ~= b2 then return a2 > b2 end
  if a3 ~= b3 then return a3 > b3 end
  return a4 > b4
end

-- Why a message that is not a repeat cannot be committed; nil when it can.
local function refusal(c, head, sender, id, flags, change)
  if not head.exists then return NO_CONVERSATION end
  local row = row_of(c, head, sender)
  if not row or byte(row, 1) ~= ACTIVE then return NOT_MEMBER end
  if head.dismissed then return DISMISSED end
  if head.admins_only and byte(row, 2) == MEMBER and not (change and change[1] == RECALL) then
    return NOT_ALLOWED
  end
  if flags >= 2 and head.exists ~= 'direct' and byte(row, 2) == MEMBER then return NOT_ALLOWED end
  if flags % 2 == 1 then return RATE_LIMITED end
  if head.behind or not is_above(id, head.last_id) then return CLOCK_BEHIND end
  if head.seq >= SEQ_MAX then return EXHAUSTED end
end

local function repeated(kept, digest)
  local id = sub(kept, 17, 32)
  local status = COMMITTED
  if sub(kept, 1, 16) ~= digest then
    status = CONFLICT
  elseif fresh[id] or call('HEXISTS', KEYS[3], id) == 1 then
    status = RESERVED
  end
  return char(status) .. sub(kept, 17, 56) .. '\0\0\0\0' .. (#kept > 56 and sub(kept, 57) or '\0\0')
end

local fields_of, revised, packed_number -- `operations`, once they are needed

-- Why an edit or recall cannot be; else nil, the target's new revision and its new record.
local function changed(c, head, sender, change, committed_at)
  local function is_within(age, window) return window < 0 or (window > 0 and age <= window) end
  if not fields_of then fields_of, revised, packed_number = operations() end
  local kind, target_seq = change[1], change[2]
  if target_seq < 1 or target_seq > head.seq then return NO_TARGET end
  local record = call('HGET', records_at .. c, string.format('%.0f', target_seq)) or change[6]
  if record == '' then return TARGET_COLD end
  local f = fields_of(record)
  if not f then return NO_TARGET end
  if fresh[f[3]] or call('HEXISTS', KEYS[3], f[3]) == 1 then return TARGET_UNSETTLED end
  if f[11] ~= 0 then return NOT_A_MESSAGE end
  if f[12] == RECALL then return TARGET_RECALLED end
  local own, governs = f[5] == sender, kind == RECALL and byte(row_of(c, head, sender), 2) ~= MEMBER
  if not own and not governs then return NOT_YOURS end
  local age = struct.unpack('>I8', committed_at) - f[10]
  if not ((own and is_within(age, change[4])) or (governs and is_within(age, change[5]))) then
    return TOO_LATE
  end
  local revision = RECALL_REVISION
  if kind ~= RECALL then
    revision = (f[14] or 0) + 1
    if revision >= RECALL_REVISION then return TOO_MANY_EDITS end
  end
  return nil, revision, revised(record, f, kind, change[3], revision)
end

-- A repeat is a repeat whatever else is the case. One command asks and reserves, since nearly all are new.
local function answer_of(request)
  local c, sender, fixed = request[1], request[2], request[4]
  local dedup_key = dedup_at .. c .. ':' .. sender .. ':' .. request[3]
  local id, committed_at = sub(fixed, 17, 32), sub(fixed, 33, 40)
  local head, change = head_of(c), request[6]
  local status, revision, after = refusal(c, head, sender, id, byte(fixed, 41), change), nil, nil
  if change and not status then status, revision, after = changed(c, head, sender, change, committed_at) end
  if status then
    local kept = call('GET', dedup_key)
    if kept then return repeated(kept, sub(fixed, 1, 16)) end
    if status == CLOCK_BEHIND then
      head.behind = true
      return char(status) .. head.last_id .. NOTHING
    end
    return char(status) .. NO_ID .. NOTHING
  end
  local seq = head.seq + 1
  local numbers = pack('>I8I8', seq, head.mv)
  local reservation, tail, active = sub(fixed, 1, 32) .. numbers .. committed_at, request[5], head.active
  if change then
    local packed = pack('>I2', revision)
    reservation, tail, active = reservation .. packed, tail .. packed_number(revision), sub(active, 1, 4) .. packed
  end
  if not call('SET', dedup_key, reservation, 'PX', retention, 'NX') then
    return repeated(call('GET', dedup_key), sub(fixed, 1, 16))
  end
  local seq_text = string.format('%.0f', seq)
  head.seq, head.last_id, head.dirty = seq, id, true
  call('HSET', records_at .. c, seq_text, '\1' .. numbers .. tail)
  if change then call('HSET', records_at .. c, string.format('%.0f', change[2]), after) end
  fresh[id] = true
  local count = #pending
  pending[count + 1], pending[count + 2] = id, head.place .. seq_text
  return char(NEW) .. id .. numbers .. committed_at .. active
end

local confirmed = {}
for at = 1, #ARGV[5], 16 do confirmed[#confirmed + 1] = sub(ARGV[5], at, at + 15) end
in_slices('HDEL', KEYS[3], confirmed)
covered(base .. 'tail', ARGV[6], base .. 'fence', ARGV[1])

for index, request in ipairs(cmsgpack.unpack(ARGV[7])) do answers[index] = answer_of(request) end

in_slices('HSET', KEYS[3], pending)
for c, head in pairs(heads) do
  if head.dirty then
    call('HSET', heads_at .. c, 'seq', string.format('%.0f', head.seq), 'last_id', head.last_id)
  end
end
return table.concat(answers)
