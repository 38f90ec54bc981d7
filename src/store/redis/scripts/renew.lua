-- ARGV: token, lease, retention
-- Answers: 0 lost, 1 held, 2 newer version
local version, token, state = unpack(redis.call('HMGET', key, 'v', 't', 's'))
if newer(version) then
    return 2
end
if token ~= ARGV[1] or state ~= '0' then
    return 0
end
redis.call('HSET', key, 'l', text(now + tonumber(ARGV[2])))
keep(tonumber(ARGV[2]) + tonumber(ARGV[3]))
return 1
