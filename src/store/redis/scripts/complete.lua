-- ARGV: token, state, reply, retention
-- Answers: 0 lost, 1 held, 2 newer version
local version, token, state = unpack(redis.call('HMGET', key, 'v', 't', 's'))
if newer(version) then
    return 2
end
if token ~= ARGV[1] then
    return 0
end
if state == '0' then
    redis.call('HSET', key, 's', ARGV[2], 'r', ARGV[3])
    keep(tonumber(ARGV[4]))
end
return 1
