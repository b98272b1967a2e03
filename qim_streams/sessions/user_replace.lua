-- Replace states of a user, each if it is what the caller read, and list them for the archive.
-- KEYS[1] uc  KEYS[2] pin  KEYS[3] dirty  KEYS[4] last
-- ARGV[1] ordinal  ARGV[2] time, ms, then conversation, '1' and the expected state or '0' and '', state, version,
--   pinned_at
-- Answer: the order of this call among the user's changes, '0' when nothing was replaced; 1 or 0 for each
local call = redis.call
local done, order = {'0'}, nil
for at = 3, #ARGV, 6 do
  local name, version, pinned = ARGV[at], ARGV[at + 4], ARGV[at + 5]
  local there = call('HGET', KEYS[1], name)
  local same
  if ARGV[at + 1] == '1' then same = there == ARGV[at + 2] else same = not there end
  if same then
    call('HSET', KEYS[1], name, ARGV[at + 3])
    if pinned == '0' then call('ZREM', KEYS[2], name) else call('ZADD', KEYS[2], pinned, name) end
    call('ZADD', KEYS[3], version, ARGV[1] .. ':' .. name)
    if not order then
      order = math.max(tonumber(ARGV[2]), tonumber(call('GET', KEYS[4]) or '0') + 1)
      done[1] = string.format('%.0f', order)
      call('SET', KEYS[4], done[1])
    end
  end
  done[#done + 1] = same and 1 or 0
end
return done
