-- ARGV: queue, 1 if only of an owner, owner, 1 if only of a label, label, status or nothing, after,
-- limit
-- Answers: 0 (entries), 1 looked at many (entries, sequence of the last one): there may be more
local CHUNK, CHUNKS = 100, 10
local limit, last, found = tonumber(ARGV[8]), ARGV[7], {}
local from = ARGV[2] == '1' and of_lane('mine', ARGV[1], ARGV[3]) or of_queue('all', ARGV[1])
if limit == 0 then
    return {0, found}
end
for _ = 1, CHUNKS do
    local members = redis.call('ZRANGEBYSCORE', from, '(' .. last, '+inf', 'LIMIT', 0, CHUNK)
    for _, member in ipairs(members) do
        local entry = load(string.sub(member, 17))
        last = text(string.sub(member, 1, 16))
        if entry and not is_gone(entry)
            and (ARGV[4] ~= '1' or entry.label == ARGV[5])
            and (ARGV[6] == '' or status_of(entry) == tonumber(ARGV[6])) then
            found[#found + 1] = answer(entry)
            if #found == limit then
                return {0, found}
            end
        end
    end
    if #members < CHUNK then
        return {0, found}
    end
end
return {1, found, last}
