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
-- KEYS: records
-- ARGV, for each: fingerprint, claim id, lease in microseconds, lease + retention and retention in
-- milliseconds, 1 if an orphan's outcome is unknown, note, the claim id that this claim resumes or
-- nothing
-- Returns for each: 0 new (token, orphaned), 1 in flight (note, remaining), 2 mismatch (note,
-- fingerprint), 3 reply (note, bytes), 4 not retained (note), 5 unknown (note, claim id of the owner),
-- 6 newer version, 7 not made among others
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
-- Whether something was written that a server without memory takes: it would take the rest, too.
local is_open = false

local function claim(key, at)
    local record = redis.call('GETRANGE', key, 0, 338)
    local token, orphaned = now, 0
    if record ~= '' then
        if string.sub(record, 1, 1) ~= '1' then
            return {6}
        end
        local noted = 84 + string.byte(record, 84)
        local note = string.sub(record, 85, noted)
        local fingerprint = string.sub(record, 36, 67)
        if fingerprint ~= ARGV[at + 1] then
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
        if owner == ARGV[at + 2] then
            orphaned = string.sub(record, 3, 3) % 2
        else
            local remaining = string.sub(record, 20, 35) - now
            local resumed = owner == ARGV[at + 8]
            if remaining > 0 and not resumed then
                return {1, note, remaining}
            end
            token, orphaned = math.max(token + 1, now), 1
            if ARGV[at + 6] == '1' and not resumed then
                local lost = '131' .. string.format('%016.0f', token) .. string.sub(record, 20)
                -- As in `renew.lua`: it takes no more memory than before.
                redis.call('PEXPIRE', key, ARGV[at + 5])
                redis.call('SET', key, lost, 'PX', ARGV[at + 5])
                is_open = true
                return {5, note, owner}
            end
        end
    end
    if is_open then
        return {7}
    end
    local head = string.format('10%d%016.0f%016.0f', orphaned + 2 * ARGV[at + 6], token, now + ARGV[at + 3])
    local note = string.char(#ARGV[at + 7]) .. ARGV[at + 7]
    local made = redis.pcall('SET', key, head .. ARGV[at + 1] .. ARGV[at + 2] .. note, 'PX', ARGV[at + 4])
    return made.err and made or {0, token, orphaned}
end

local answers = {}
for n, key in ipairs(KEYS) do
    local answer = claim(key, 8 * (n - 1))
    if answer.err then
        if #KEYS == 1 then
            return answer
        end
        answer = {7}
    end
    answers[n] = answer
end
return answers
