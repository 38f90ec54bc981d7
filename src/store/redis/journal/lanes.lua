-- ARGV: queue, where to begin as ZRANGEBYLEX has it, limit
-- Answers: 0 (names)
sweep()
local awake, idle = of_queue('awake', ARGV[1]), of_queue('idle', ARGV[1])
-- Wakes lanes that have come due, 10000 at most in a call.
for _ = 1, 10 do
    local woken = redis.call('ZRANGEBYSCORE', idle, '-inf', text(now), 'LIMIT', 0, 1000)
    if #woken == 0 then
        break
    end
    local named = {}
    for _, lane in ipairs(woken) do
        named[#named + 1] = 0
        named[#named + 1] = lane
    end
    redis.call('ZREM', idle, unpack(woken))
    redis.call('ZADD', awake, unpack(named))
end
return {0, redis.call('ZRANGEBYLEX', awake, ARGV[2], '+', 'LIMIT', 0, ARGV[3])}
