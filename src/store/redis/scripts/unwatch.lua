-- KEYS[1] is the set of `watch.lua`.
-- ARGV: members
-- Returns 1
redis.call('ZREM', KEYS[1], unpack(ARGV))
return 1
