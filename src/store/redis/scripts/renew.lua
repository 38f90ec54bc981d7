-- ARGV: token, lease in microseconds, lease + retention in milliseconds, the claim id that takes the
-- record over or nothing
-- Returns 0 lost, 1 held, 2 newer version, or held with the claim id before, if another one was given
-- and `watch.lua` knows it
local record = redis.call('GETRANGE', KEYS[1], 0, 338)
if string.sub(record, 1, 2) ~= '10' or string.sub(record, 4, 19) ~= ARGV[1] then
    local version = string.sub(record, 1, 1)
    return (version == '' or version == '1') and 0 or 2
end
local time = redis.call('TIME')
local lease = string.format('%016.0f', time[1] * 1000000 + time[2] + ARGV[2])
local renewed = string.sub(record, 1, 19) .. lease .. string.sub(record, 36, 67)
    .. (ARGV[4] == '' and string.sub(record, 68, 83) or ARGV[4]) .. string.sub(record, 84)
-- A server without memory lets a script go on that began with a write that takes none: what runs is
-- renewed and completed, also when nothing new can be claimed.
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('SET', KEYS[1], renewed, 'PX', ARGV[3])
if ARGV[4] ~= '' and string.sub(record, 3, 3) >= '2' then
    return string.sub(record, 68, 83)
end
return 1
