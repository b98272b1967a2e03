-- Give out the next order of a user's changes, for something that changed his list without him.
-- KEYS[1] last   ARGV[1] time, ms
-- Answer: the order, as text
local order = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
local text = string.format('%.0f', order)
redis.call('SET', KEYS[1], text)
return text
