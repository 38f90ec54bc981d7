-- ARGV: what it is if there is none yet
-- Answers: 0 (secret)
if not version then
    redis.call('HSET', base, 'version', '1')
end
redis.call('HSETNX', base, 'secret', ARGV[1])
return {0, redis.call('HGET', base, 'secret')}
