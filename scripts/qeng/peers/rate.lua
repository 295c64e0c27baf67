-- A limit on bytes a second, for what is sent or asked for. Who wants to go on asks how long to wait, and says what it
-- took: it may take more than it has, and then waits until that is paid.

local q = require "qeng.core"

local rates = {}
local Rate = {}
Rate.__index = Rate

local burst = 0.1  -- seconds: what may be taken at once after a rest

-- bytes_per_second: nil, there is no limit.
function rates.new(bytes_per_second)
  return setmetatable({ speed = bytes_per_second or math.huge, have = 0, at = q.time() }, Rate)
end

-- Seconds until something may be taken; 0: now.
function Rate:wait()
  if self.speed == math.huge then return 0 end
  local now = q.time()
  self.have, self.at = math.min(self.have + (now - self.at) * self.speed, burst * self.speed), now
  return self.have >= 0 and 0 or -self.have / self.speed
end

function Rate:take(bytes)
  if self.speed < math.huge then self.have = self.have - bytes end
end

return rates
