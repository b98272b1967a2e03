-- Remembers how far conversations are archived and when that was, and tells from where each is still hot.
-- KEYS[1] {ob:p}:hot
-- ARGV[1] time, ms  ARGV[2..] tenant:conversation, newest seq that the published watermark covers, ...
-- Answer: hot_from of each, 0 for a conversation that is not here

local base = string.match(KEYS[1], '^{[^}]*}:')
local found = {}
for at = 2, #ARGV, 2 do
  local key = base .. 'c:' .. ARGV[at]
  local head = redis.call('HMGET', key, 'kind', 'hot_from', 'archived_seq')
  if head[1] then
    redis.call('ZADD', KEYS[1], 'GT', ARGV[1], ARGV[at])
    if tonumber(ARGV[at + 1]) > tonumber(head[3] or '0') then
      redis.call('HSET', key, 'archived_seq', ARGV[at + 1])
    end
    found[at / 2] = head[2] or '1'
  else
    found[at / 2] = '0'
  end
end
return found
