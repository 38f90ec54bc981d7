-- Each key twice: by two connections at about the same time.
local n = 0
local run = tostring(os.time()) .. tostring({}):gsub("[^%w]", "")

function request()
   n = n + 1
   local key = run .. "-" .. math.floor((n + 1) / 2)
   return wrk.format("POST", nil, { ["idempotency-key"] = key, ["content-type"] = "text/plain" }, "order")
end
