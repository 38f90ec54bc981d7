-- ARGV: token
-- Answers: 0 lost, 1 held, 2 newer version
local version, token, state = unpack(redis.call('HMGET', key, 'v', 't', 's'))
if newer(version) then
    return 2
end
if token ~= ARGV[1] or state ~= '0' then
    return 0
end
redis.call('DEL', key)
return 1
