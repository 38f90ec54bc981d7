-- ARGV: queue, lane, limit, least urgent priority, lease in microseconds, ticket, 1 if in order
-- Answers: 0 (entries)
local queue, lane, limit = ARGV[1], ARGV[2], math.min(tonumber(ARGV[3]), 1000)
local taken = {}
-- A ticket comes again when the answer got lost: the answer is what it leased then.
local ticket = base .. ':ticket:' .. ARGV[6]
for id, turn in string.gmatch(redis.call('GET', ticket) or '', '(%x+):(%d+)') do
    local entry = load(id, true)
    if entry and entry.status == PROCESSING and entry.turn == tonumber(turn) then
        taken[#taken + 1] = answer(entry)
    end
end
if #taken > 0 then
    return {0, taken}
end
sweep()
-- Queues entries whose lease ran out. Each stays its owner's until it is leased again.
local leased, past = of_lane('leased', queue, lane), of_lane('past', queue, lane)
local lapsed = redis.call('ZRANGEBYSCORE', leased, '-inf', text(now), 'LIMIT', 0, 1000)
for _, member in ipairs(lapsed) do
    redis.call('ZREM', leased, member)
    local entry = load(string.sub(member, 17))
    if entry then
        ready(entry)
    end
end

local turns = {}
local function take(from, most)
    local left = math.min(limit - #taken, most)
    if left <= 0 then
        return
    end
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', from, '-inf', text(now), 'LIMIT', 0, left)) do
        local entry = load(string.sub(member, 17), true)
        if entry then
            hide(entry)
            entry.status = PROCESSING
            entry.turn = entry.turn + 1
            entry.changed = now
            entry.attempts = entry.attempts + (entry.expires > now and 1 or 0)
            entry.ends = after(ARGV[5])
            save(entry, 'status', 'turn', 'changed', 'attempts', 'ends')
            show(entry)
            taken[#taken + 1] = answer(entry)
            turns[#turns + 1] = entry.id .. ':' .. text(entry.turn)
        else
            redis.call('ZREM', from, member)
        end
    end
end
-- In order: the first entry that is due, unless it waits or another one is leased.
local in_order, free = ARGV[7] == '1', redis.call('ZCARD', leased) == 0
take(past, limit)
for priority = 0, tonumber(ARGV[4]) do
    local from = of_lane('ready' .. priority, queue, lane)
    if not in_order then
        take(from, limit)
    else
        local first = redis.call('ZRANGEBYSCORE', from, '-inf', text(now), 'LIMIT', 0, 1)[1]
        if first then
            local entry = load(string.sub(first, 17))
            if not entry or (free and (entry.status == PROCESSING or entry.ends <= now)) then
                take(from, 1)
            end
            break
        end
    end
end
if #taken > 0 then
    -- Longer than a request is repeated.
    redis.call('SET', ticket, table.concat(turns, ' '), 'PX', 60000)
end
place(queue, lane)
return {0, taken}
