-- ARGV: the outbox, as for `insert`; then id, turn, status, 1 if the attempt does not count, time
-- to wait or to keep it in microseconds, note, cause or nothing, 1 if there is a result, result, 1 if it
-- keeps its place when it is queued again, 1 if something takes the place of the payload, that
-- Answers: 0 lost, 1 held
local follows = (#ARGV - 12) / NEW
local at = follows * NEW
local entry = load(ARGV[at + 1])
if not entry or entry.turn ~= tonumber(ARGV[at + 2]) then
    return {0}
end
if entry.status ~= PROCESSING then
    return {1}
end
hide(entry)
sweep()
for n = 0, follows - 1 do
    if not existing(n * NEW) then
        insert(n * NEW)
    end
end
if ARGV[at + 4] ~= '1' then
    local cause = ARGV[at + 7]
    entry.repeats = cause == '' and 0 or (cause == entry.cause and entry.repeats or 0) + 1
    entry.cause = cause
elseif entry.expires > entry.changed then
    entry.attempts = math.max(entry.attempts - 1, 0)
end
entry.status = tonumber(ARGV[at + 3])
entry.changed = now
entry.ends = after(ARGV[at + 5])
if entry.status == QUEUED and ARGV[at + 10] ~= '1' then
    entry.due = math.min(entry.ends, entry.expires)
end
save(entry, 'attempts', 'redrives', 'repeats', 'cause', 'status', 'changed', 'ends', 'due')
if ARGV[at + 8] == '1' then
    entry.result = ARGV[at + 9]
    save(entry, 'result')
end
if ARGV[at + 11] == '1' then
    replace_payload(entry, ARGV[at + 12])
end
note(entry, ARGV[at + 6])
if is_over(entry) then
    count(entry, -1)
end
show(entry)
place(entry.queue, entry.lane)
return {1}
