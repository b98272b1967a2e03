-- Write rows of users of one slot, and register the conversations that are new to them.
--
-- KEYS[1] {q:tenant:lane}:reg
-- ARGV[1] '1': these conversations are wide
-- ARGV[2] msgpack [ordinal, conversation, activity, first_seq, ...]: as arguments, they would cost the caller
--   more than the writes cost the server
-- Answer  how many conversations were new to their users
--
-- Row and registration are one step: a conversation that is in a user's set has been registered, whatever
-- dies. A row only grows (GT), so repeats and stragglers change nothing. A registration that still waits is
-- left as it is: it has the lower first_seq.
local call = redis.call
local base = string.sub(KEYS[1], 1, -4)
local wide = ARGV[1] == '1'
local fresh = 0
local rows = cmsgpack.unpack(ARGV[2])
for at = 1, #rows, 4 do
  local ordinal, conversation, activity = rows[at], rows[at + 1], rows[at + 2]
  local added = call('ZADD', base .. 'convs:' .. ordinal, 'GT', activity, conversation)
  if wide then call('SADD', base .. 'wide:' .. ordinal, conversation) end
  if added == 1 then
    fresh = fresh + 1
    call('HSETNX', KEYS[1], ordinal .. ':' .. conversation,
      struct.pack('>BI8I8B', 1, rows[at + 3], activity, wide and 1 or 0))
  end
end
return fresh
