-- A mixture of experts, forward and backward in f32, on a CPU:
--   qeng bench/experts.lua [--threads 2] [--tokens 512] [--hidden 1024] [--width 384] [--experts 32] [--chosen 8]
-- bench/experts_peer.py measures transformers in turns with it: it writes a line to --serve's standard input for each
-- figure, and reads the seconds of one step.

local q = require "qeng"

local opt = q.options {
  "Measures a mixture of experts, forward and backward.",
  { "threads", 2, "threads of the CPU", min = 1, integer = true },
  { "seconds", 2, "time for each figure", min = 0.01, number = true },
  { "tokens", 512, "rows of the input", min = 1, integer = true },
  { "hidden", 1024, "columns of the input", min = 1, integer = true },
  { "width", 384, "columns inside an expert", min = 1, integer = true },
  { "experts", 32, "experts", min = 1, integer = true },
  { "chosen", 8, "experts of a token", min = 1, integer = true },
  { "profile", false, "each operation against the machine's limits" },
  { "serve", false, "answers lines of standard input" },
}
q.device { device = "cpu", threads = opt.threads }

local function normal(shape, seed, scale)
  local tensor = q.keep((q.randn(shape, { seed = seed }) * scale):compute())
  tensor:requires_grad(true)
  return tensor
end
local t, h, w, e, k = opt.tokens, opt.hidden, opt.width, opt.experts, opt.chosen
local x, router = normal({ t, h }, 1, 1), normal({ e, h }, 2, h ^ -0.5)
local gate, up = normal({ e, w, h }, 3, h ^ -0.5), normal({ e, w, h }, 4, h ^ -0.5)
local down, dy = normal({ e, h, w }, 5, w ^ -0.5), q.randn({ t, h }, { seed = 6 })

local function mixture()
  local scores = q.linear(x, router):softmax()
  local choice, _, first, place = q.route(scores, k)
  local weight = scores:gather(2, choice)
  weight = weight / weight:sum(-1, true)
  local rows = q.dispatch(x, place)
  local inner = q.swiglu(q.grouped_linear(rows, gate, first), q.grouped_linear(rows, up, first))
  return q.combine(q.grouped_linear(inner, down, first), place, weight)
end

local function step()
  q.scope(function() (mixture() * dy):sum():backward() end)
end

-- Median seconds of a step.
local function measure()
  local times, begin = {}, q.time()
  step()
  repeat
    local start = q.time()
    step()
    times[#times + 1] = q.time() - start
  until q.time() - begin >= opt.seconds and #times >= 3
  table.sort(times)
  return times[math.ceil(#times / 2)]
end

if opt.profile then
  step()
  print(q.profile(step))
  return
end
if opt.serve then
  for _ in io.lines() do
    io.write(("%.9g\n"):format(measure()))
    io.flush()
  end
  return
end
-- Three products of each chosen expert, and twice as many behind.
local seconds, flops = measure(), 3 * 6 * t * k * h * w
print(("%d tokens, %d of %d experts: %.1f ms, %.0f GFLOP/s"):format(t, k, e, seconds * 1e3, flops / seconds / 1e9))
