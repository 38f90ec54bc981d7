-- A record is one string, which Redis removes when it expires:
--    1       version of this layout
--    2       state: 0 in flight, 1 reply, 2 reply not retained, 3 outcome unknown
--    3       1 if an owner before this one vanished, and 2 more if `watch.lua` knows the claim
--    4 - 19  token
--   20 - 35  end of the lease, in microseconds since 1970
--   36 - 67  fingerprint
--   68 - 83  claim id
--   84       length of the note, as a byte
--   85 -     note, reply
-- Numbers are 16 digits: below 2^53, where Lua loses integers.
--
-- ARGV: fingerprint, claim id, lease in microseconds, lease + retention and retention in
-- milliseconds, 1 if an orphan's outcome is unknown, note, the claim id that
-- this claim resumes or nothing
-- Returns 0 new (token, orphaned), 1 in flight (note, remaining), 2 mismatch (note, fingerprint),
-- 3 reply (note, bytes), 4 not retained (note), 5 unknown (note, claim id of the owner), 6 newer
-- version
local key = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local record = redis.call('GETRANGE', key, 0, 338)
local token, orphaned = now, 0

if record ~= '' then
    if string.sub(record, 1, 1) ~= '1' then
        return {6}
    end
    local noted = 84 + string.byte(record, 84)
    local note = string.sub(record, 85, noted)
    local fingerprint = string.sub(record, 36, 67)
    if fingerprint ~= ARGV[1] then
        return {2, note, fingerprint}
    end
    local state = string.sub(record, 2, 2)
    if state == '1' then
        return {3, note, redis.call('GETRANGE', key, noted, -1)}
    end
    local owner = string.sub(record, 68, 83)
    if state ~= '0' then
        return {state + 2, note, owner}
    end
    token = tonumber(string.sub(record, 4, 19))
    if owner == ARGV[2] then
        orphaned = string.sub(record, 3, 3) % 2
    else
        local remaining = string.sub(record, 20, 35) - now
        local resumed = owner == ARGV[8]
        if remaining > 0 and not resumed then
            return {1, note, remaining}
        end
        token, orphaned = math.max(token + 1, now), 1
        if ARGV[6] == '1' and not resumed then
            local lost = '131' .. string.format('%016.0f', token) .. string.sub(record, 20)
            -- As in `renew.lua`: it takes no more memory than before.
            redis.call('PEXPIRE', key, ARGV[5])
            redis.call('SET', key, lost, 'PX', ARGV[5])
            return {5, note, owner}
        end
    end
end

local flags = orphaned + 2 * ARGV[6]
local head = string.format('10%d%016.0f%016.0f', flags, token, now + ARGV[3])
local note = string.char(#ARGV[7]) .. ARGV[7]
redis.call('SET', key, head .. ARGV[1] .. ARGV[2] .. note, 'PX', ARGV[4])
return {0, token, orphaned}
