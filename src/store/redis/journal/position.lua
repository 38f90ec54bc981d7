-- ARGV: id
-- Answers: 0 not queued, 1 (how many are before it)
local entry = load(ARGV[1])
if not entry or status_of(entry) ~= QUEUED then
    return {0}
end
local function set(priority)
    return of_lane('ready' .. priority, entry.queue, entry.lane)
end
local before = redis.call('ZRANK', set(entry.priority), entry.member) or 0
for priority = 0, entry.priority - 1 do
    before = before + redis.call('ZCARD', set(priority))
end
return {1, before}
