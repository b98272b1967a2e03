-- A conversation as one user meets it.
-- KEYS[1] any key of the Outbox partition (its hash tag names the slot)
-- ARGV[1] tenant:conversation  ARGV[2] user  ARGV[3] tenant NUL conversation NUL
-- ARGV[4] 1: only of a partition that is proved whole for this run of the server (`ownership.wholeness`)
-- Answer: {last number given out, last number committed, history policy, member row or nil}; nil when there
--   is no such conversation; the word DOUBTFUL when the partition may have lost it, or its last numbers
--
-- Committed is the highest number whose message is not pending: records enter the Outbox in the order of
-- their numbers, so everything below is there, too, even if its confirmation is still on the way. The
-- pending list is only looked through while the newest message is on it.

local base = string.match(KEYS[1], '^{[^}]*}:')
if ARGV[4] == '1' then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  if redis.call('GET', base .. 'whole') ~= run then return 'DOUBTFUL' end
end
local head = redis.call('HMGET', base .. 'c:' .. ARGV[1], 'kind', 'seq', 'last_id', 'history_policy')
if not head[1] then return false end
local allocated = tonumber(head[2] or '0')
local committed = allocated
if head[3] and redis.call('HEXISTS', base .. 'pend', head[3]) == 1 then
  local waiting, length = {}, #ARGV[3]
  for _, place in ipairs(redis.call('HVALS', base .. 'pend')) do
    if string.sub(place, 1, length) == ARGV[3] then waiting[string.sub(place, length + 1)] = true end
  end
  while committed > 0 and waiting[string.format('%.0f', committed)] do committed = committed - 1 end
end
return {string.format('%.0f', allocated), string.format('%.0f', committed), head[4] or '',
  redis.call('HGET', base .. 'gm:' .. ARGV[1], ARGV[2])}
