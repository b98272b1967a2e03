-- Removes messages of a conversation from the hot tier: those of which the archive holds the same bytes.
--
-- Compare and remove in one step: a message that changed after the archive was asked stays, and its later
-- state is archived and trimmed in its own turn. No epoch is needed: what goes is in the archive, whoever
-- says so. A message that is not confirmed stays, because the next owner of the partition appends it again.
--
-- KEYS[1] {ob:p}:pend  KEYS[2] {ob:p}:r:<c>  KEYS[3] {ob:p}:c:<c>
-- ARGV[1] hot_from after this  ARGV[2..] seq, message_id, SHA-1 of the archived bytes (hex), ...
-- Answer: {removed, differing, seq of the unconfirmed message where it stopped, or 0}

local removed, differing, hot_from, stopped_at = {}, 0, ARGV[1], '0'
for at = 2, #ARGV, 3 do
  local record = redis.call('HGET', KEYS[2], ARGV[at])
  if record then
    if redis.call('HEXISTS', KEYS[1], ARGV[at + 1]) == 1 then
      stopped_at = ARGV[at]
      if tonumber(stopped_at) < tonumber(hot_from) then hot_from = stopped_at end
      break
    end
    if redis.sha1hex(record) == ARGV[at + 2] then
      removed[#removed + 1] = ARGV[at]
    else
      differing = differing + 1
    end
  end
end
if #removed > 0 then redis.call('HDEL', KEYS[2], unpack(removed)) end
local head = redis.call('HMGET', KEYS[3], 'kind', 'hot_from')
if head[1] and tonumber(hot_from) > tonumber(head[2] or '1') then
  redis.call('HSET', KEYS[3], 'hot_from', hot_from)
end
return {#removed, differing, tonumber(stopped_at)}
