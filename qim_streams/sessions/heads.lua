-- Conversations as users meet them, with their newest records, RESERVED ones included.
-- KEYS[1] any key of the Outbox partition (its hash tag names the slot)
-- ARGV[1] records of one conversation at most  ARGV[2] bytes of records after which only the newest one of each
--   conversation is read
-- ARGV[3] msgpack, flat: tenant:conversation, user, number above which records are wanted, last number and last
--   message id that the caller has records of, number at or below which nothing is wanted, ...
-- Answer for each: false, or {kind, name, other member of a direct chat or nil, his row or nil, dismissed,
--   history policy, last number given out, last number committed, last message id or nil, member row or nil,
--   1 if the caller has the records, record or nil, ...}
--
-- Committed as in history_view.lua: what is pending may still vanish, counts, and is shown to nobody.
local call = redis.call
local base = string.match(KEYS[1], '^{[^}]*}:')
local most, bytes_left = tonumber(ARGV[1]), tonumber(ARGV[2])
local heads_at, members_at, records_at, pending_at = base .. 'c:', base .. 'gm:', base .. 'r:', base .. 'pend'
local pending

-- As text; `text` is that of `allocated`.
local function committed_of(c, allocated, text, last_id)
  if not last_id or call('HEXISTS', pending_at, last_id) == 0 then return text end
  if not pending then
    pending = {}
    for _, one in ipairs(call('HVALS', pending_at)) do pending[one] = true end
  end
  local place = string.gsub(c, ':', '\0', 1) .. '\0'
  while allocated > 0 and pending[place .. string.format('%.0f', allocated)] do allocated = allocated - 1 end
  return string.format('%.0f', allocated)
end

local function peer_of(c, user)
  local rows = call('HGETALL', members_at .. c)
  for row = 1, #rows, 2 do
    if rows[row] ~= user then return rows[row], rows[row + 1] end
  end
  return false, false
end

local function add_records(answer, c, high, above)
  local wanted = bytes_left > 0 and most or 1
  local names = {}
  for seq = high, math.max(1, high - wanted + 1, math.min(high, above + 1)), -1 do
    names[#names + 1] = string.format('%.0f', seq)
  end
  for _, row in ipairs(call('HMGET', records_at .. c, unpack(names))) do
    answer[#answer + 1] = row
    if row then bytes_left = bytes_left - #row end
  end
end

local answers, wanted = {}, cmsgpack.unpack(ARGV[3])
for at = 1, #wanted, 6 do
  local c, user = wanted[at], wanted[at + 1]
  local head = call('HMGET', heads_at .. c, 'kind', 'seq', 'last_id', 'name', 'history_policy', 'dismissed')
  local text = head[2] or '0'
  local high = tonumber(text)
  if head[1] and high > wanted[at + 5] then
    local last_id = head[3]
    local known = high == wanted[at + 3] and (last_id or '') == wanted[at + 4]
    local peer, peer_row = false, false
    if head[1] == 'direct' then peer, peer_row = peer_of(c, user) end
    local answer = {
      head[1], head[4] or '', peer, peer_row, head[6] or '0', head[5] or '', text,
      committed_of(c, high, text, last_id), last_id, call('HGET', members_at .. c, user), known and 1 or 0,
    }
    if high > 0 and not known then add_records(answer, c, high, wanted[at + 2]) end
    answers[#answers + 1] = answer
  else
    answers[#answers + 1] = false
  end
end
return answers
