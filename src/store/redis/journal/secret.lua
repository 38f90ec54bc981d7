-- ARGV: the secret to keep if there is none yet
-- Answers: 0 (secret)
mark_version()
redis.call('HSETNX', base, 'secret', ARGV[1])
return {0, redis.call('HGET', base, 'secret')}
