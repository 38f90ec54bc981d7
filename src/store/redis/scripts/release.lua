-- ARGV: token
-- Returns 0 lost, 1 held, 2 newer version, or held with the claim id, if `watch.lua` knows it
local record = redis.call('GETRANGE', KEYS[1], 0, 82)
if string.sub(record, 1, 2) ~= '10' or string.sub(record, 4, 19) ~= ARGV[1] then
    local version = string.sub(record, 1, 1)
    return (version == '' or version == '1') and 0 or 2
end
redis.call('DEL', KEYS[1])
if string.sub(record, 3, 3) >= '2' then
    return string.sub(record, 68, 83)
end
return 1
