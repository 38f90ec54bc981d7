-- Takes a claim into the set of those that people may have to look at, by the end of its lease.
-- KEYS[1] is the set, its members are a record's key and a claim id.
-- ARGV: member, lease in microseconds, 1 if the lease may only have become shorter
-- Returns 1
local time = redis.call('TIME')
local ends = time[1] * 1000000 + time[2] + ARGV[2]
local known = ARGV[3] == '1' and redis.call('ZSCORE', KEYS[1], ARGV[1])
if not known or tonumber(known) > ends then
    redis.call('ZADD', KEYS[1], string.format('%.0f', ends), ARGV[1])
end
return 1
