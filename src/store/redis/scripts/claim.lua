-- ARGV: fingerprint, claim id, lease, retention, whether an orphan's outcome is unknown
-- Answers: 0 new (token, orphaned), 1 in flight (remaining), 2 mismatch, 3 reply (bytes),
-- 4 not retained, 5 unknown, 6 newer version
local fingerprint, id = ARGV[1], ARGV[2]
local lease, retention = tonumber(ARGV[3]), tonumber(ARGV[4])

local function own(token, orphaned)
    redis.call('HSET', key, 'v', '1', 'f', fingerprint, 'i', id, 't', text(token),
        'o', orphaned, 's', '0', 'l', text(now + lease))
    keep(lease + retention)
    return {0, token, orphaned}
end

local version, used_for, owner, token, orphaned, state, lease_until =
    unpack(redis.call('HMGET', key, 'v', 'f', 'i', 't', 'o', 's', 'l'))

if not version then
    return own(now, 0)
end
if newer(version) then
    return {6}
end
if used_for ~= fingerprint then
    return {2}
end
if state == '1' then
    return {3, redis.call('HGET', key, 'r')}
end
if state ~= '0' then
    return {state + 2}
end
if owner == id then
    return own(tonumber(token), tonumber(orphaned))
end
if tonumber(lease_until) > now then
    return {1, tonumber(lease_until) - now}
end
local greater = math.max(tonumber(token) + 1, now)
if ARGV[5] == '1' then
    redis.call('HSET', key, 't', text(greater), 's', '3')
    keep(retention)
    return {5}
end
return own(greater, 1)
