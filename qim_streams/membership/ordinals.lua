-- Numbers users of one tenant and lane, in the order in which they come; a number is never given twice.
-- KEYS[1] {o:tenant:lane}:ids  KEYS[2] {o:tenant:lane}:names  KEYS[3] {o:tenant:lane}:next
-- KEYS[4] {o:tenant:lane}:run, the run of the server for which the lane is known to have all its users
-- ARGV[1] '': no proof is asked for; '?': only if the lane is proved for this run; else the run for which it is
-- ARGV[2] numbers to leave out where a lane is opened for a run  ARGV[3..] user, ...
-- Answer: the count (from 0) of each user; an error UNPROVED when somebody is new and may have been known
--
-- A server that was started anew or emptied may have lost users. Their numbers come back out of the logs,
-- those of users that are in no log do not: the numbers left out are theirs (docs/decisions/0013-lost-hot-tier.md).

local proof = ARGV[1]
if proof ~= '' then
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  if redis.call('GET', KEYS[4]) == run then
    proof = ''
  elseif proof == run then
    local next_count = math.max(redis.call('HLEN', KEYS[1]), tonumber(redis.call('GET', KEYS[3]) or '0'))
    redis.call('SET', KEYS[3], string.format('%.0f', next_count + tonumber(ARGV[2])))
    redis.call('SET', KEYS[4], run)
    proof = ''
  end
end

local counts = {}
for at = 3, #ARGV do
  local user = ARGV[at]
  local count = redis.call('HGET', KEYS[1], user)
  if not count then
    if proof ~= '' then return redis.error_reply('UNPROVED') end
    local next_count = math.max(redis.call('HLEN', KEYS[1]), tonumber(redis.call('GET', KEYS[3]) or '0'))
    count = string.format('%.0f', next_count)
    redis.call('HSET', KEYS[1], user, count)
    redis.call('HSET', KEYS[2], count, user)
    redis.call('SET', KEYS[3], string.format('%.0f', next_count + 1))
  end
  counts[at - 2] = tonumber(count)
end
return counts
