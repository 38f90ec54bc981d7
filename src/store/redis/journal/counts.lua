-- ARGV: queue
-- Answers: 0 (six counts by status, since when the oldest is queued or nothing, what time it is)
local queue = ARGV[1]
local fresh, waiting, stale = of_queue('fresh', queue), of_queue('waiting', queue), of_queue('stale', queue)
-- An entry past its time does not count as the oldest. Each is moved to `stale` once, 10000 at most
-- in a call; the rest is only counted as expired.
for _ = 1, 10 do
    local past = redis.call('ZRANGEBYSCORE', fresh, '-inf', text(now), 'LIMIT', 0, 1000)
    if #past == 0 then
        break
    end
    redis.call('ZREM', fresh, unpack(past))
    redis.call('ZREM', waiting, unpack(past))
    redis.call('SADD', stale, unpack(past))
end
local past = redis.call('ZCOUNT', fresh, '-inf', text(now))
local counts = {
    redis.call('ZCARD', fresh) - past,
    redis.call('SCARD', of_queue('busy', queue)),
}
for status = 2, 5 do
    local over = of_queue('over' .. status, queue)
    counts[status + 1] = redis.call('ZCOUNT', over, '(' .. text(now), '+inf')
end
counts[EXPIRED + 1] = counts[EXPIRED + 1] + redis.call('SCARD', stale) + past
local oldest = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
return {0, counts, oldest or '', text(now)}
