-- Put in front of every script that writes for the owner of an Outbox partition. Spec: §14.6.

-- An error reply unless `epoch` (decimal text) is the partition's current epoch.
local function fenced(epoch_key, epoch)
  local current = redis.call('GET', epoch_key)
  if current ~= epoch then
    return redis.error_reply('FENCED ' .. (current or '0'))
  end
end

-- Numbers the calls of one epoch. `low` is the last call that the owner knows to be applied, `mine` is
-- this one. An older call that was given up and arrives late is refused (STALE_CALL), so that it cannot
-- slip a message in between; a store that has lost an acknowledged call says so (ROLLED_BACK).
local function numbered(call_key, epoch, low, mine)
  local seen = 0
  local stored = redis.call('GET', call_key)
  if stored then
    local of_epoch, number = string.match(stored, '^(%d+) (%d+)$')
    if of_epoch == epoch then seen = tonumber(number) end
  end
  if seen >= tonumber(mine) then return redis.error_reply('STALE_CALL') end
  if seen < tonumber(low) then return redis.error_reply('ROLLED_BACK') end
  redis.call('SET', call_key, epoch .. ' ' .. mine)
end

-- Calls `command key` with the items of `list`, at most 4,000 at a time (unpack() fails near 8,000).
local function in_slices(command, key, list)
  local count = #list
  for first = 1, count, 4000 do
    redis.call(command, key, unpack(list, first, math.min(first + 3999, count)))
  end
end

-- Remembers how far a log is reflected here: every record up to `offset` was committed before this. Of the
-- Outbox also `fence` (decimal text), the epoch of the last barrier up to there, under `fence_key`.
local function covered(tail_key, offset, fence_key, fence)
  if tonumber(offset) > tonumber(redis.call('GET', tail_key) or '-1') then
    redis.call('SET', tail_key, offset)
    if fence_key then redis.call('SET', fence_key, fence) end
  end
end
