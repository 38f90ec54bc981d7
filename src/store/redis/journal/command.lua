-- ARGV: id, what (0 cancel, 1 trigger, 2 redrive, 3 purge), time to keep it or to live in microseconds, note
-- Answers: 0 there is none, 1 not in a state for that (entry), 2 applied (entry)
local entry = load(ARGV[1])
if not entry or is_gone(entry) then
    return {0}
end
if status_of(entry) ~= (ARGV[2] >= '2' and FAILED or QUEUED) then
    return {1, answer(entry)}
end
if ARGV[2] == '3' then
    remove(entry)
    return {2, answer(entry)}
end
hide(entry)
if ARGV[2] == '0' then
    count(entry, -1)
    entry.status = CANCELLED
    entry.changed = now
    entry.ends = after(ARGV[3])
    replace_payload(entry, '')
elseif ARGV[2] == '1' then
    entry.priority = 0
    entry.due = now
    entry.ends = now
else
    count(entry, 1)
    entry.status = QUEUED
    entry.changed = now
    entry.attempts = 0
    entry.redrives = entry.redrives + 1
    entry.repeats = 0
    entry.due = now
    entry.expires = after(ARGV[3])
    entry.ends = now
end
save(entry, 'priority', 'status', 'attempts', 'redrives', 'repeats', 'due', 'expires', 'changed', 'ends')
note(entry, ARGV[4])
show(entry)
place(entry.queue, entry.lane)
entry.history = nil
return {2, answer(entry)}
