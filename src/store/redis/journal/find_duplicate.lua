-- ARGV: queue, dedup key
-- Answers: 0 there is none, 1 (entry, fingerprint)
local id = redis.call('HGET', of_queue('same', ARGV[1]), ARGV[2])
local entry = id and load(id)
if not entry or is_gone(entry) then
    return {0}
end
local status = status_of(entry)
if status == CANCELLED or status == EXPIRED then
    return {0}
end
return {1, answer(entry), entry.print}
