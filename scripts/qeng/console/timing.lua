-- q.time(fn, ...): how long a function takes, and what share of the device's limit that is.

local q = require "qeng.core"

local kSample = 5e-3  -- seconds of runs in a sample: the clock, and waiting for the device, cost microseconds
local kEnough = 0.5   -- seconds of samples
local kSamples = 3    -- and at least so many, unless a run takes
local kLong = 2       -- seconds

local clock = q.time

local Timing = { __name = "q.time" }

local function duration(seconds)
  if seconds < 1e-3 then return ("%.4g us"):format(seconds * 1e6) end
  if seconds < 1 then return ("%.4g ms"):format(seconds * 1e3) end
  return ("%.4g s"):format(seconds)
end

function Timing:__tostring()
  local text = ("%s (%s to %s, %d runs)"):format(duration(self.median), duration(self.fastest), duration(self.slowest),
    self.runs)
  if not self.share then return text end
  return text .. ("; %.0f %% of the device's limit, %.4g GFLOP/s, %.4g GB/s"):format(100 * self.share,
    self.flops / self.median / 1e9, self.bytes / self.median / 1e9)
end

-- Computes the tensors among the results.
local function computed(...)
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    local meta = type(value) == "userdata" and getmetatable(value)
    if meta and meta.__name == "Tensor" then value:compute() end
  end
end

local function measure(fn, ...)
  local flag = q.zeros { 1 }
  local function sample(count, ...)
    local began = clock()
    for _ = 1, count do q.scope(function(...) computed(fn(...)) end, ...) end
    flag:item()  -- the device has done all
    return (clock() - began) / count
  end
  local limits = q.limits { if_room = true }
  local first = sample(1, ...)  -- makes what is made once
  local count = math.max(1, math.ceil(kSample / math.max(first, 1e-7)))
  local samples, total = {}, 0
  repeat
    local seconds = sample(count, ...)
    samples[#samples + 1], total = seconds, total + seconds * count
  until total >= kEnough and (#samples >= kSamples or seconds > kLong)
  table.sort(samples)
  local timing = setmetatable({
    median = samples[math.ceil(#samples / 2)], fastest = samples[1], slowest = samples[#samples],
    runs = #samples * count,
  }, Timing)
  local profile = limits and q.profile(q.scope, function(...) computed(fn(...)) end, ...)
  if profile and profile.total_ms > 0 then
    timing.share, timing.flops, timing.bytes = profile.total_ms / 1e3 * profile.share / timing.median, 0, 0
    for _, row in ipairs(profile.ops) do
      timing.flops, timing.bytes = timing.flops + row.flops, timing.bytes + row.bytes
    end
  end
  return timing
end

function q.time(fn, ...)
  if fn == nil then return clock() end
  if type(fn) ~= "function" then
    q.error("value", ("time: a function expected, got a %s: q.time(function() return a * b end)"):format(type(fn)))
  end
  return measure(fn, ...)
end
