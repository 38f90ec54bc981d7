-- ARGV: queue, owner, limit, sequence to begin after
-- Answers: 0 (how many were removed, how many are left), 1 looked at many (the same, sequence of the last
-- one): there may be more
local CHUNK, CHUNKS = 100, 10
local queue, owner, limit, last = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local mine = of_lane('mine', queue, owner)
if owner == '' then
    return {0, 0, 0}
end
local removed, lanes, more = 0, {}, true
-- A script blocks the server: it looks at a thousand.
for _ = 1, CHUNKS do
    local members = redis.call('ZRANGEBYSCORE', mine, '(' .. last, '+inf', 'LIMIT', 0, CHUNK)
    for _, member in ipairs(members) do
        if removed == limit then
            break
        end
        last = text(string.sub(member, 1, 16))
        local entry = load(string.sub(member, 17))
        if not entry then
            redis.call('ZREM', mine, member)
        elseif entry.status ~= PROCESSING or entry.ends <= now then
            -- First: a server without memory lets a script go on that began by removing something.
            remove(entry)
            if not is_over(entry) then
                count(entry, -1)
            end
            lanes[entry.lane] = true
            removed = removed + 1
        end
    end
    more = #members == CHUNK and removed < limit
    if not more then
        break
    end
end
for lane in pairs(lanes) do
    place(queue, lane)
end
local left = redis.call('ZCARD', mine)
if more then
    return {1, removed, left, last}
end
return {0, removed, left}
