-- ARGV: entries, each as for `insert`; then how many entries its queue and its owner may have, or nothing
-- Answers: 0 (for each: 0 new (entry), 1 existing (entry), 2 mismatch, 3 full)
local function enqueue(at)
    sweep()
    local found, same = existing(at)
    if found then
        return same and {1, answer(found)} or {2}
    end
    local in_all, per_owner = tonumber(ARGV[at + NEW + 1]), tonumber(ARGV[at + NEW + 2])
    if in_all then
        local open = of_queue('open', ARGV[at + 2])
        local has = redis.call('HMGET', open, 'all', 'of ' .. ARGV[at + 4])
        if tonumber(has[1] or 0) >= in_all or tonumber(has[2] or 0) >= per_owner then
            return {3}
        end
    end
    local entry = insert(at)
    if in_all then
        entry.bounded = '1'
        save(entry, 'bounded')
        count(entry, 1)
    end
    return {0, answer(entry)}
end

local answers = {}
for at = 0, #ARGV - 1, NEW + 2 do
    answers[#answers + 1] = enqueue(at)
end
return {0, answers}
