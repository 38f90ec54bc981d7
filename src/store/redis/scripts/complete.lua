-- ARGV: token, state, reply, retention in milliseconds
-- Returns 0 lost, 1 held, 2 newer version, or held with the claim id, if `watch.lua` has to know that it
-- ended, or that it is unknown how
local record = redis.call('GETRANGE', KEYS[1], 0, 338)
if string.sub(record, 1, 1) ~= '1' or string.sub(record, 4, 19) ~= ARGV[1] then
    local version = string.sub(record, 1, 1)
    return (version == '' or version == '1') and 0 or 2
end
if string.sub(record, 2, 2) == '0' then
    local done = '1' .. ARGV[2] .. string.sub(record, 3) .. ARGV[3]
    -- As in `renew.lua`: a server without memory takes the completion of what runs.
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    redis.call('SET', KEYS[1], done, 'PX', ARGV[4])
else
    -- A repeat writes, too: a `WAIT` behind it waits for what was written before.
    redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]))
end
if ARGV[2] == '3' or string.sub(record, 3, 3) >= '2' then
    return string.sub(record, 68, 83)
end
return 1
