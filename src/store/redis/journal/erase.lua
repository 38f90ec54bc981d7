-- ARGV: queue, owner, limit
-- Answers: 0 (how many were removed, how many are left up to the limit)
local queue, owner, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local mine = of_lane('mine', queue, owner)
-- A script blocks the server: it looks at a thousand.
local removed, kept, lanes = 0, 0, {}
local left = math.min(limit, 1000)
while owner ~= '' and left > 0 do
    local members = redis.call('ZRANGE', mine, kept, kept + math.min(left, 100) - 1)
    if #members == 0 then
        break
    end
    for _, member in ipairs(members) do
        left = left - 1
        local entry = load(string.sub(member, 17))
        if not entry then
            redis.call('ZREM', mine, member)
        elseif entry.status == PROCESSING and entry.ends > now then
            kept = kept + 1
        else
            if not is_over(entry) then
                count(entry, -1)
            end
            remove(entry)
            lanes[entry.lane] = true
            removed = removed + 1
        end
    end
end
for lane in pairs(lanes) do
    place(queue, lane)
end
return {0, removed, owner == '' and 0 or math.min(redis.call('ZCARD', mine), limit)}
