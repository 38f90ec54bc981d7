-- Functions that all verbs of the journal share. This file goes before each of them.
--
-- KEYS[1] is a hash: version of this layout, sequence, secret. All other keys begin with its name,
-- so that a cluster keeps them on the same server. Keys of a queue end in the queue's name, keys of a
-- lane in the length of that name, the name, and the lane.
--
--   entry     a hash for each entry, by id
--   shared    a hash for each end that payloads have in common, by its id: `payload`, and the number of
--             `entries` that need it
--   all       of a queue: its entries, by sequence
--   mine      of a queue and an owner: the same
--   same      of a queue: a hash of ids, by dedup key
--   ready0-3  of a lane: entries to lease, by when they are due, one for each priority
--   past      of a lane: the same entries, by when they are past their time
--   leased    of a lane: leased entries, by when the lease runs out
--   fresh     of a queue: queued entries not seen to be past their time, by when they are
--   waiting   of a queue: the same entries, by when they were queued
--   stale     of a queue: queued entries that were seen to be past their time
--   busy      of a queue: entries that are processed
--   open      of a queue: a hash of how many entries with bounds are not over: `all`, and `of ` with an
--             owner
--   over2-5   of a queue: entries that are over, by when they may be removed, by status
--   over      the same entries, of all queues
--   awake     of a queue: lanes with something to lease, by name
--   idle      of a queue: the other lanes that are not empty, by when they will have
--   ticket    of a lease request: what it leased, for a minute
--
-- Members of sets are the sequence in 16 digits, so that equal times are in sequence, and the id.
-- Times are microseconds since 1970, below 2^53, up to where Lua's numbers are exact. An entry without
-- a hash does not exist, whatever the sets say.
--
-- Answers are lists that begin with a number; -1 says that a newer release wrote the journal.
local base = KEYS[1]
-- While a cluster moves the slot, its keys are on two servers. A command on two keys, one of which
-- does not exist, then fails on either of them, before anything is half done.
redis.call('EXISTS', base, base .. ':nowhere')
-- Version 1 has no counters and no causes, version 2 no bounds, version 3 no shared ends. Their entries are
-- read as they are; the first write makes it version 4, so that older releases refuse it from then on.
local VERSION = '4'
local version = redis.call('HGET', base, 'version')
if version and not string.find('1234', version, 1, true) then
    return {-1}
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local QUEUED, PROCESSING, EXPIRED, CANCELLED, FAILED = 0, 1, 4, 5, 3
-- The first ANSWERED fields go into every answer, the last three only into that of a whole entry.
local FIELDS = {
    'id', 'queue', 'lane', 'owner', 'label', 'priority', 'status', 'sequence', 'turn', 'attempts',
    'queued', 'due', 'expires', 'changed', 'redrives', 'repeats', 'cause', 'reason', 'ends', 'key', 'print',
    'bounded', 'shared', 'payload', 'result', 'history',
}
local NUMBERS = {
    'priority', 'status', 'sequence', 'turn', 'attempts', 'queued', 'due', 'expires', 'changed',
    'redrives', 'repeats', 'ends',
}
local ANSWERED, SHORT = 18, 23

local function text(number)
    return string.format('%.0f', number)
end

local function after(micros)
    return math.min(now + micros, 9007199254740991)
end

local function of_queue(kind, queue)
    return base .. ':' .. kind .. ':' .. queue
end

local function of_lane(kind, queue, lane)
    return base .. ':' .. kind .. ':' .. #queue .. ':' .. queue .. ':' .. lane
end

local function key_of(id)
    return base .. ':entry:' .. id
end

local function key_of_end(id)
    return base .. ':shared:' .. id
end

-- Returns an entry, whole or without payload, result and history; nil if there is none.
local function load(id, whole)
    local found = redis.call('HMGET', key_of(id), unpack(FIELDS, 1, whole and #FIELDS or SHORT))
    if not found[1] then
        return nil
    end
    local entry = {}
    for i, name in ipairs(FIELDS) do
        entry[name] = found[i]
    end
    for _, name in ipairs(NUMBERS) do
        entry[name] = tonumber(entry[name])
    end
    if not entry.redrives then
        local history = redis.call('HGET', key_of(id), 'history') or ''
        entry.redrives = select(2, string.gsub(history, '0008redriven', ''))
        entry.repeats = 0
    end
    if whole and entry.shared then
        -- False if it is lost: the entry can't be read then.
        local rest = redis.call('HGET', key_of_end(entry.shared), 'payload')
        entry.payload = rest and entry.payload .. rest
    end
    entry.cause = entry.cause or ''
    entry.reason = entry.reason or ''
    entry.member = string.format('%016.0f', entry.sequence) .. id
    return entry
end

local function mark_version()
    if version ~= VERSION then
        version = VERSION
        redis.call('HSET', base, 'version', version)
    end
end

-- Writes some fields of an entry.
local function save(entry, ...)
    mark_version()
    local words = {}
    for _, name in ipairs({...}) do
        local value = entry[name]
        words[#words + 1] = name
        words[#words + 1] = type(value) == 'number' and text(value) or value
    end
    redis.call('HSET', key_of(entry.id), unpack(words))
end

-- Returns the state that readers see.
local function status_of(entry)
    if entry.status == QUEUED and entry.expires <= now then
        return EXPIRED
    end
    return entry.status
end

local function is_over(entry)
    return entry.status ~= QUEUED and entry.status ~= PROCESSING
end

-- Returns whether the entry was kept long enough, and only waits to be removed.
local function is_gone(entry)
    return is_over(entry) and entry.ends <= now
end

local function answer(entry)
    local values = {}
    for i = 1, ANSWERED do
        local value = entry[FIELDS[i]]
        values[i] = type(value) == 'number' and text(value) or value
    end
    values[7] = text(status_of(entry))
    values[19] = entry.payload == nil and '' or entry.payload
    values[20] = entry.result or false
    values[21] = entry.history or ''
    return values
end

-- Takes an entry out of the sets of its state. Verbs do this first: a server without memory lets a
-- script go on that began by removing something, so that queued entries can still be processed.
local function hide(entry)
    local queue, lane, member = entry.queue, entry.lane, entry.member
    if is_over(entry) then
        redis.call('ZREM', base .. ':over', member)
        redis.call('ZREM', of_queue('over' .. entry.status, queue), member)
        return
    end
    -- An entry whose lease ran out may be in either place.
    redis.call('ZREM', of_lane('ready' .. entry.priority, queue, lane), member)
    redis.call('ZREM', of_lane('past', queue, lane), member)
    if entry.status == PROCESSING then
        redis.call('ZREM', of_lane('leased', queue, lane), member)
        redis.call('SREM', of_queue('busy', queue), member)
    else
        redis.call('ZREM', of_queue('fresh', queue), member)
        redis.call('ZREM', of_queue('waiting', queue), member)
        redis.call('SREM', of_queue('stale', queue), member)
    end
end

-- Adds an entry to those that can be leased.
local function ready(entry)
    local queue, lane, member = entry.queue, entry.lane, entry.member
    redis.call('ZADD', of_lane('ready' .. entry.priority, queue, lane), text(entry.due), member)
    redis.call('ZADD', of_lane('past', queue, lane), text(entry.expires), member)
end

-- Puts an entry into the sets of its state.
local function show(entry)
    local queue, lane, member = entry.queue, entry.lane, entry.member
    if is_over(entry) then
        local gone = text(entry.ends)
        redis.call('ZADD', base .. ':over', gone, member)
        redis.call('ZADD', of_queue('over' .. entry.status, queue), gone, member)
    elseif entry.status == PROCESSING then
        redis.call('ZADD', of_lane('leased', queue, lane), text(entry.ends), member)
        redis.call('SADD', of_queue('busy', queue), member)
    else
        ready(entry)
        if entry.expires > now then
            redis.call('ZADD', of_queue('fresh', queue), text(entry.expires), member)
            redis.call('ZADD', of_queue('waiting', queue), text(entry.queued), member)
        else
            redis.call('SADD', of_queue('stale', queue), member)
        end
    end
end

-- Moves a lane between awake and idle after a change. An entry past its time is due as well.
local function place(queue, lane)
    local next
    for _, kind in ipairs({'ready0', 'ready1', 'ready2', 'ready3', 'leased'}) do
        local first = redis.call('ZRANGE', of_lane(kind, queue, lane), 0, 0, 'WITHSCORES')[2]
        if first and (not next or tonumber(first) < next) then
            next = tonumber(first)
        end
    end
    local awake, idle = of_queue('awake', queue), of_queue('idle', queue)
    if next and next <= now then
        redis.call('ZREM', idle, lane)
        redis.call('ZADD', awake, 0, lane)
    else
        redis.call('ZREM', awake, lane)
        if next then
            redis.call('ZADD', idle, text(next), lane)
        else
            redis.call('ZREM', idle, lane)
        end
    end
end

-- Counts an entry that begins (1) or ends (-1) to be queued or processed against the bounds of its queue.
local function count(entry, change)
    if not entry.bounded then
        return
    end
    local open = of_queue('open', entry.queue)
    for _, field in ipairs({'all', 'of ' .. entry.owner}) do
        if redis.call('HINCRBY', open, field, change) <= 0 then
            redis.call('HDEL', open, field)
        end
    end
end

-- Appends a line to the history; it comes with its kind and length in front.
local function note(entry, framed)
    if framed == '' then
        return
    end
    local history = redis.call('HGET', key_of(entry.id), 'history') or ''
    entry.history = history .. string.format('%016.0f', now) .. framed
    save(entry, 'history')
end

-- Counts an entry that needs the end of its payload no more. The last one takes it along.
local function release(entry)
    if entry.shared then
        local rest = key_of_end(entry.shared)
        if redis.call('HINCRBY', rest, 'entries', -1) <= 0 then
            redis.call('DEL', rest)
        end
    end
end

-- Writes what stays of the payload of an entry that is over.
local function replace_payload(entry, remainder)
    release(entry)
    entry.shared = nil
    redis.call('HDEL', key_of(entry.id), 'shared')
    redis.call('HSET', key_of(entry.id), 'payload', remainder)
end

local function remove(entry)
    hide(entry)
    redis.call('ZREM', of_queue('all', entry.queue), entry.member)
    redis.call('ZREM', of_lane('mine', entry.queue, entry.owner), entry.member)
    local same = of_queue('same', entry.queue)
    -- A later entry may have taken the key over.
    if entry.key and redis.call('HGET', same, entry.key) == entry.id then
        redis.call('HDEL', same, entry.key)
    end
    release(entry)
    redis.call('DEL', key_of(entry.id))
end

-- Removes a few entries that were kept long enough.
local function sweep()
    local gone = redis.call('ZRANGEBYSCORE', base .. ':over', '-inf', text(now), 'LIMIT', 0, 8)
    for _, member in ipairs(gone) do
        local entry = load(string.sub(member, 17))
        if entry then
            remove(entry)
        else
            redis.call('ZREM', base .. ':over', member)
        end
    end
end
