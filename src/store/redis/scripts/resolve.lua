-- ARGV: token, state and reply or nothing to free the key, retention in milliseconds, 1 if an earlier
-- attempt may have done it
-- Returns 0 conflict, 1 made (claim id of the former owner, if it is known), 6 newer version
local key = KEYS[1]
local record = redis.call('GETRANGE', key, 0, 338)
if record == '' then
    return {ARGV[2] == '' and tonumber(ARGV[5]) or 0}
end
if string.sub(record, 1, 1) ~= '1' then
    return {6}
end
local state, token = string.sub(record, 2, 2), string.sub(record, 4, 19)
local id, noted = string.sub(record, 68, 83), 84 + string.byte(record, 84)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local is_unknown = state == '3' or (state == '0' and now >= tonumber(string.sub(record, 20, 35)))
if token ~= ARGV[1] or not is_unknown then
    -- A repeat, perhaps, whose first response was lost.
    local again = state == ARGV[2] and token > ARGV[1]
        and redis.call('GETRANGE', key, noted, -1) == ARGV[3]
    return again and {1, id} or {0}
end
if ARGV[2] == '' then
    redis.call('DEL', key)
    return {1, id}
end
local next = string.format('%016.0f', math.max(tonumber(token) + 1, now))
local done = '1' .. ARGV[2] .. '0' .. next .. string.sub(record, 20, noted) .. ARGV[3]
-- As in `renew.lua`: a server without memory takes it.
redis.call('PEXPIRE', key, ARGV[4])
redis.call('SET', key, done, 'PX', ARGV[4])
return {1, id}
