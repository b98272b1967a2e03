-- Conversations that were last archived at or before a time, oldest first.
-- KEYS[1] {ob:p}:hot
-- ARGV[1] time, ms  ARGV[2] how many at most
-- Answer: {tenant:conversation, hot_from, archived_seq, ...}; both 0 where there is no such conversation

local base = string.match(KEYS[1], '^{[^}]*}:')
local found = {}
for _, c in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])) do
  local head = redis.call('HMGET', base .. 'c:' .. c, 'kind', 'hot_from', 'archived_seq')
  found[#found + 1] = c
  found[#found + 1] = head[1] and (head[2] or '1') or '0'
  found[#found + 1] = head[1] and (head[3] or '0') or '0'
end
return found
