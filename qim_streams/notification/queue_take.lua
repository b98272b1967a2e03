-- Claim due tasks of a slot and provider: nobody else gets them until the claim ends.
-- KEYS: due, task, try (hash id -> attempts that were answered), out (hash id -> an attempt was begun).
-- ARGV: now, end of the claim, limit.
-- Answers {when the next one is due or -1, id, record, attempts, begun (0 or 1), id, ...}.
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])) do
  local record = redis.call('HGET', KEYS[2], id)
  if record then
    redis.call('ZADD', KEYS[1], ARGV[2], id)
    found[#found + 1] = id
    found[#found + 1] = record
    found[#found + 1] = tonumber(redis.call('HGET', KEYS[3], id) or '0')
    found[#found + 1] = redis.call('HEXISTS', KEYS[4], id)
  else
    redis.call('ZREM', KEYS[1], id)
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
-- Under RESP3 a member comes with its score in a table of its own.
local score = first[2] or (type(first[1]) == 'table' and first[1][2]) or -1
table.insert(found, 1, math.floor(tonumber(score)))
return found
