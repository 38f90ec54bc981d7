-- KEYS: records
-- ARGV, for each: token, state, reply, retention in milliseconds
-- Returns for each: 0 lost, 1 held, 2 newer version, or held with the claim id, if `watch.lua` has to
-- know that it ended, or that it is unknown how
local function complete(key, token, state, reply, retention)
    local record = redis.call('GETRANGE', key, 0, 338)
    if string.sub(record, 1, 1) ~= '1' or string.sub(record, 4, 19) ~= token then
        local version = string.sub(record, 1, 1)
        return (version == '' or version == '1') and 0 or 2
    end
    if string.sub(record, 2, 2) == '0' then
        local done = '1' .. state .. string.sub(record, 3) .. reply
        if redis.pcall('SET', key, done, 'PX', retention).err then
            -- As in `renew.lua`: a server without memory takes the completion of what runs.
            redis.call('PEXPIRE', key, retention)
            redis.call('SET', key, done, 'PX', retention)
        end
    else
        -- A repeat writes, too: a `WAIT` behind it waits for what was written before.
        redis.call('PEXPIRE', key, redis.call('PTTL', key))
    end
    if state == '3' or string.sub(record, 3, 3) >= '2' then
        return string.sub(record, 68, 83)
    end
    return 1
end

local answers = {}
for n, key in ipairs(KEYS) do
    local at = 4 * (n - 1)
    answers[n] = complete(key, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
end
return answers
