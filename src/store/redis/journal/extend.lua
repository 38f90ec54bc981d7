-- ARGV: id, turn, lease in microseconds
-- Answers: 0 lost, 1 held
local entry = load(ARGV[1])
if not entry or entry.status ~= PROCESSING or entry.turn ~= tonumber(ARGV[2]) then
    return {0}
end
hide(entry)
entry.ends = after(ARGV[3])
save(entry, 'ends')
show(entry)
place(entry.queue, entry.lane)
return {1}
