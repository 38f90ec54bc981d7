-- ARGV: the letter and the outbox, as for `insert`; then the time to keep it in microseconds, attempts,
-- note, cause or nothing, 1 if there is a result, result
-- Answers: as `enqueue`
local entries = (#ARGV - 6) / NEW
local at = entries * NEW
sweep()
local found, same = existing(0)
if found then
    return same and {1, answer(found)} or {2}
end
local entry = insert(0)
for n = 1, entries - 1 do
    if not existing(n * NEW) then
        insert(n * NEW)
    end
end
hide(entry)
entry.status = FAILED
entry.ends = after(ARGV[at + 1])
entry.attempts = tonumber(ARGV[at + 2])
entry.cause = ARGV[at + 4]
entry.repeats = entry.cause == '' and 0 or 1
save(entry, 'status', 'ends', 'attempts', 'cause', 'repeats')
if ARGV[at + 5] == '1' then
    entry.result = ARGV[at + 6]
    save(entry, 'result')
    entry.result = nil
end
note(entry, ARGV[at + 3])
entry.history = nil
show(entry)
place(entry.queue, entry.lane)
return {0, answer(entry)}
