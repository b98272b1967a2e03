-- One user's presence.
-- KEYS[1]: zset device -> ms until which its note holds.  KEYS[2]: hash {last: ms, hidden: ms since when}
-- ARGV: verb, now_ms, then: "note" device until_ms | "seen" | "show" | "hide"
-- Answer: {changed 0/1, online 0/1, last seen ms} as others see the user. Numbers are exact: milliseconds.
local on, at, verb, now = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local KEEP_MS = 90 * 86400000 -- who was not seen for so long was never seen

local last = tonumber(redis.call('HGET', at, 'last') or '0')
local hidden = redis.call('HGET', at, 'hidden')

-- Notes that ran out: the user was last seen when the last of them did, not now.
local stale = redis.call('ZREVRANGEBYSCORE', on, now, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
if stale[2] then
  last = math.max(last, tonumber(stale[2]))
  if verb ~= 'seen' then
    redis.call('ZREMRANGEBYSCORE', on, '-inf', now)
    redis.call('HSET', at, 'last', string.format('%.0f', last))
    redis.call('PEXPIRE', at, KEEP_MS)
  end
end

local function view()
  if hidden then return {false, tonumber(hidden)} end
  local online = redis.call('ZCOUNT', on, string.format('(%.0f', now), '+inf') > 0
  return {online, online and 0 or last}
end

local before = view()
if verb == 'note' then
  local device, until_ms = ARGV[3], tonumber(ARGV[4])
  if until_ms > now then
    redis.call('ZADD', on, until_ms, device)
    redis.call('PEXPIREAT', on, string.format('%.0f', until_ms + KEEP_MS)) -- what ran out says when it did
  elseif redis.call('ZREM', on, device) == 1 then
    last = now
    redis.call('HSET', at, 'last', string.format('%.0f', now))
    redis.call('PEXPIRE', at, KEEP_MS)
  end
elseif verb == 'hide' and not hidden then
  local seen = before[1] and now or last
  hidden = string.format('%.0f', seen)
  redis.call('HSET', at, 'hidden', hidden)
  redis.call('PERSIST', at)
elseif verb == 'show' and hidden then
  hidden = false
  redis.call('HDEL', at, 'hidden')
end
local after = view()
local changed = (before[1] ~= after[1]) and 1 or 0
return {changed, after[1] and 1 or 0, string.format('%.0f', after[2])}
