-- ARGV: claim id of the owner, or nothing for any
-- Returns 0 settled, gone or another owner's, 1 in flight under a lease, 2 of unknown outcome (token,
-- note, microseconds since the lease ended, milliseconds until it expires), 6 newer version
local record = redis.call('GETRANGE', KEYS[1], 0, 338)
if record == '' then
    return {0}
end
if string.sub(record, 1, 1) ~= '1' then
    return {6}
end
local state = string.sub(record, 2, 2)
if (state ~= '0' and state ~= '3') or (ARGV[1] ~= '' and string.sub(record, 68, 83) ~= ARGV[1]) then
    return {0}
end
local time = redis.call('TIME')
local since = time[1] * 1000000 + time[2] - string.sub(record, 20, 35)
if state == '0' and since < 0 then
    return {1}
end
local note = string.sub(record, 85, 84 + string.byte(record, 84))
local token = tonumber(string.sub(record, 4, 19))
return {2, token, note, math.max(since, 0), redis.call('PTTL', KEYS[1])}
