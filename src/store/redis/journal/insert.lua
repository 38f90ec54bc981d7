-- Enqueues entries of fourteen arguments each, from the one after `at`.
-- ARGV: id, queue, lane, owner, label, dedup key or nothing, fingerprint, priority, delay and time
-- to live in microseconds, payload up to its shared end, reason or nothing, id of that end or nothing, and
-- its bytes or nothing if an entry before has the same one
local NEW = 14
local ends = {}

-- Returns the entry that has the id or the key, and whether it is the same operation; nil if there is
-- none. An entry that has the id and only waits to be removed makes room.
local function existing(at)
    if ARGV[at + 14] ~= '' then
        ends[ARGV[at + 13]] = ARGV[at + 14]
    end
    local found = load(ARGV[at + 1])
    if found and not is_gone(found) then
        return found, true
    end
    if found then
        remove(found)
    end
    if ARGV[at + 6] == '' then
        return nil
    end
    local id = redis.call('HGET', of_queue('same', ARGV[at + 2]), ARGV[at + 6])
    found = id and load(id)
    if not found or is_gone(found) then
        return nil
    end
    local status = status_of(found)
    if status == CANCELLED or status == EXPIRED then
        return nil
    end
    return found, found.print == ARGV[at + 7]
end

local function insert(at)
    local sequence = redis.call('HINCRBY', base, 'sequence', 1)
    local expires = after(ARGV[at + 10])
    local entry = {
        id = ARGV[at + 1],
        queue = ARGV[at + 2],
        lane = ARGV[at + 3],
        owner = ARGV[at + 4],
        label = ARGV[at + 5],
        priority = tonumber(ARGV[at + 8]),
        status = QUEUED,
        sequence = sequence,
        turn = 0,
        attempts = 0,
        queued = now,
        due = math.min(after(ARGV[at + 9]), expires),
        expires = expires,
        changed = now,
        redrives = 0,
        repeats = 0,
        cause = '',
        ends = now,
        payload = ARGV[at + 11],
        reason = ARGV[at + 12],
        member = string.format('%016.0f', sequence) .. ARGV[at + 1],
    }
    save(entry, 'id', 'queue', 'lane', 'owner', 'label', 'cause', 'payload', unpack(NUMBERS))
    if entry.reason ~= '' then
        save(entry, 'reason')
    end
    if ARGV[at + 13] ~= '' then
        entry.shared = ARGV[at + 13]
        save(entry, 'shared')
        local rest = key_of_end(entry.shared)
        if redis.call('HINCRBY', rest, 'entries', 1) == 1 then
            redis.call('HSET', rest, 'payload', ends[entry.shared])
        end
    end
    if ARGV[at + 6] ~= '' then
        entry.key, entry.print = ARGV[at + 6], ARGV[at + 7]
        save(entry, 'key', 'print')
        redis.call('HSET', of_queue('same', entry.queue), entry.key, entry.id)
    end
    redis.call('ZADD', of_queue('all', entry.queue), text(sequence), entry.member)
    redis.call('ZADD', of_lane('mine', entry.queue, entry.owner), text(sequence), entry.member)
    show(entry)
    place(entry.queue, entry.lane)
    entry.payload = nil
    return entry
end
