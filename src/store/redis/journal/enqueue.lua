-- Answers: 0 new (entry), 1 existing (entry), 2 mismatch
sweep()
local found, same = existing(0)
if not found then
    return {0, answer(insert(0))}
end
return same and {1, answer(found)} or {2}
