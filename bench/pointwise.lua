-- Arithmetic on tensors (q.Tensor's operators, Pointwise) against the bandwidth of a copy of the same size:
--   qeng bench/pointwise.lua [--threads 2] [--seconds 0.3] [--only softmax]
-- bench/pointwise_peer.py measures PyTorch in turns with it: it writes a case's name to --serve's standard input, and
-- reads the seconds of one run.

local q = require "qeng"

local opt = q.options {
  "Measures chains of pointwise functions and row functions.",
  { "threads", 2, "threads of the CPU", min = 1, integer = true },
  { "seconds", 0.3, "time for each figure", min = 0.01, number = true },
  { "only", "", "cases whose name has this in it" },
  { "serve", false, "answers names of cases on standard input" },
}
q.device { device = "cpu", threads = opt.threads }

-- rows of columns: 1 MB in f32, of which the second-level caches hold two, and 64 MB or more
local sizes = { small = { 256, 1024 }, large = { 16384, 1024 }, long = { 330, 50257 } }

local function row(n, seed, dtype) return q.randn({ 1, n }, { seed = seed, dtype = dtype }) end
-- Random enough, and soon made.
local function normal(shape, seed, dtype)
  return q.empty(shape, dtype):set(row(shape[2], seed) * q.randn({ shape[1], 1 }, { seed = seed + 100 }))
end

-- Makes a case: its operands, then what is timed. moved: how many tensors of the size it has to read and write.
local chains = {}
chains["softmax, gate, residual"] = { 4, function(new, _)  -- 8 functions and 2 of rows
  local x, gate, rest = new(1), new(2), new(3)
  return function()
    local scaled = x * 0.125 + 0.5
    local e = (scaled - scaled:max(-1, true)):exp()
    return e / e:sum(-1, true) * gate:sigmoid() + rest
  end
end }
chains["layernorm, gate, residual"] = { 4, function(new, one)  -- 8 functions and 2 of rows
  local x, gate, rest, w, b = new(1), new(2), new(3), one(4), one(5)
  return function()
    local centred = x - x:mean(-1, true)
    local normed = centred * ((centred * centred):mean(-1, true) + 1e-5):rsqrt()
    return (normed * w + b) * gate:sigmoid() + rest
  end
end }
chains["x sigmoid(x) y"] = { 3, function(new)
  local x, y = new(1), new(2)
  return function() return x * x:sigmoid() * y end
end }
chains["softmax"] = { 2, function(new)
  local x = new(1)
  return function() return x:softmax() end
end }
chains["layernorm"] = { 2, function(new, one)
  local x, w, b = new(1), one(2), one(3)
  return function()
    local centred = x - x:mean(-1, true)
    return centred * ((centred * centred):mean(-1, true) + 1e-5):rsqrt() * w + b
  end
end }
-- Reads x and the gradient, writes that of x.
-- Forward and backward: reads x and what its result is multiplied with twice, writes the gradient of x.
chains["layernorm, backward"] = { 5, function(new, one)
  local x, dy, w, b = new(1), new(2), one(3), one(4)
  for _, t in ipairs { x, w, b } do t:requires_grad(true) end
  return function()
    local centred = x - x:mean(-1, true)
    local y = centred * ((centred * centred):mean(-1, true) + 1e-5):rsqrt() * w + b
    return (y * dy):sum():to("f32")
  end, true
end }
for _, name in ipairs { "gelu", "sin", "cos", "log1p", "tanh", "erf" } do
  chains[name] = { 2, function(new)
    local x = name == "log1p" and q.keep((new(1) ^ 2):compute()) or new(1)
    return function() return x[name](x) end
  end }
end
local order = { "softmax, gate, residual", "layernorm, gate, residual", "x sigmoid(x) y", "softmax", "layernorm",
  "layernorm, backward", "gelu", "sin", "cos", "log1p", "tanh", "erf" }

-- Median and least seconds of a run.
local function measure(body)
  local times, begin = {}, q.time()
  body()
  repeat
    local start = q.time()
    body()
    times[#times + 1] = q.time() - start
  until q.time() - begin >= opt.seconds and #times >= 5
  table.sort(times)
  return times[math.ceil(#times / 2)], times[1]
end

-- Bytes a second of a copy that reads and writes as much memory.
local function copying(bytes)
  local seconds
  q.scope(function()
    local n = math.floor(bytes / 8)
    local x, y = q.randn { n }, q.randn { n }
    seconds = measure(function() y:copy(x) end)
  end)
  return bytes / seconds
end

-- Seconds of a run of a case, median and least; its bytes.
local function run(name, size, dtype)
  local shape, chain = sizes[size], chains[name]
  local median, least
  q.scope(function()
    local y = q.zeros(shape, dtype)
    local body, trains = chain[2](function(seed) return normal(shape, seed, dtype) end,
      function(seed) return row(shape[2], seed, dtype) end)
    median, least = measure(function()
      q.scope(function()
        if trains then body():backward() else y:set(body()) end
      end)
    end)
  end)
  return median, least, chain[1] * shape[1] * shape[2] * (dtype == "bf16" and 2 or 4)
end

if opt.serve then
  for line in io.lines() do
    local median, least, bytes = run(line:match "^(.*)/(%w+)/(%w+)$")
    io.write(("%.9g %.9g %.9g %d\n"):format(median, least, copying(bytes), bytes))
    io.flush()
  end
  return
end
print(("%-28s %-6s %-5s %9s %8s %8s %6s"):format("chain", "size", "dtype", "us", "GB/s", "copy", "share"))
for _, size in ipairs { "small", "large", "long" } do
  for _, dtype in ipairs { "f32", "bf16" } do
    for _, name in ipairs(order) do
      if (name .. "/" .. size .. "/" .. dtype):find(opt.only, 1, true) and (size ~= "long" or name == "softmax") then
        local median, _, bytes = run(name, size, dtype)
        local copy = copying(bytes)
        local rate = bytes / median
        print(("%-28s %-6s %-5s %9.1f %8.1f %8.1f %5.0f%%"):format(name, size, dtype, median * 1e6, rate / 1e9,
          copy / 1e9, 100 * rate / copy))
      end
    end
  end
end
