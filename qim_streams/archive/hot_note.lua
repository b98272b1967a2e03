-- Remembers when messages of conversations were last archived, and tells from where each is still hot.
-- KEYS[1] {ob:p}:hot
-- ARGV[1] time, ms  ARGV[2..] tenant:conversation
-- Answer: hot_from of each, 0 for a conversation that is not here

local base = string.match(KEYS[1], '^{[^}]*}:')
local found = {}
for at = 2, #ARGV do
  local head = redis.call('HMGET', base .. 'c:' .. ARGV[at], 'kind', 'hot_from')
  if head[1] then
    redis.call('ZADD', KEYS[1], 'GT', ARGV[1], ARGV[at])
    found[at - 1] = head[2] or '1'
  else
    found[at - 1] = '0'
  end
end
return found
