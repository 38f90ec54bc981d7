-- KEYS[1] is the set of `watch.lua`.
-- ARGV: the end of a lease to begin with, how many to skip, how many to return
-- Returns the time, and members with the ends of their leases, which are over
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
return {now, redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], now, 'WITHSCORES', 'LIMIT', ARGV[2], ARGV[3])}
