-- A record is one hash, which Redis removes when it is past its time:
--   v version of this layout   f fingerprint   i claim id   t token   o orphaned
--   s state: 0 in flight, 1 reply, 2 reply not retained, 3 outcome unknown
--   l end of the lease         r reply
-- Times are microseconds since 1970. Numbers stay below 2^53, where Lua counts in whole numbers.

local key = KEYS[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function text(number)
    return string.format('%.0f', number)
end

local function keep(micros)
    redis.call('PEXPIRE', key, text(math.max(1, math.ceil(micros / 1000))))
end

local function newer(version)
    return version and version ~= '1'
end
