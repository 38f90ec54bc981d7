-- ARGV: the entry, as for `insert`; then how many entries its queue and its owner may have, or nothing
-- Answers: 0 new (entry), 1 existing (entry), 2 mismatch, 3 full
sweep()
local found, same = existing(0)
if found then
    return same and {1, answer(found)} or {2}
end
local in_all, per_owner = tonumber(ARGV[NEW + 1]), tonumber(ARGV[NEW + 2])
if in_all then
    local open = redis.call('HMGET', of_queue('open', ARGV[2]), 'all', 'of ' .. ARGV[4])
    if tonumber(open[1] or 0) >= in_all or tonumber(open[2] or 0) >= per_owner then
        return {3}
    end
end
local entry = insert(0)
if in_all then
    entry.bounded = '1'
    save(entry, 'bounded')
    count(entry, 1)
end
return {0, answer(entry)}
