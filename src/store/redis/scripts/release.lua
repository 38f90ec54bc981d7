-- ARGV: token
-- Returns 0 lost, 1 held, 2 newer version
local record = redis.call('GETRANGE', KEYS[1], 0, 18)
if string.sub(record, 1, 2) ~= '10' or string.sub(record, 4, 19) ~= ARGV[1] then
    local version = string.sub(record, 1, 1)
    return (version == '' or version == '1') and 0 or 2
end
redis.call('DEL', KEYS[1])
return 1
