-- Charges a tenant's shared bucket of recipients and says where it stands.
-- KEYS[1] {t:<tenant>}:fanout, hash: level, at (ms)  KEYS[2] {t:<tenant>}:rules, hash
-- ARGV[1] recipients to charge  ARGV[2] default rate per second  ARGV[3] burst, ms of the rate
-- Answer: {level, rate}, as text. Rate 0: no bound, nothing is kept.
local per_s = tonumber(redis.call('HGET', KEYS[2], 'fanout_per_s') or ARGV[2])
if per_s <= 0 then
  redis.call('DEL', KEYS[1])
  return {'0', '0'}
end
local burst = per_s * tonumber(ARGV[3]) / 1000
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local row = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = burst
if row[1] then
  level = math.min(burst, tonumber(row[1]) + math.max(0, now - tonumber(row[2])) * per_s / 1000)
end
level = level - tonumber(ARGV[1])
redis.call('HSET', KEYS[1], 'level', string.format('%.3f', level), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - level) / per_s * 1000) + 1000)
return {string.format('%.3f', level), string.format('%.3f', per_s)}
