-- ARGV: id
-- Answers: 0 there is none, 1 (entry)
local entry = load(ARGV[1], true)
if not entry or is_gone(entry) then
    return {0}
end
return {1, answer(entry)}
