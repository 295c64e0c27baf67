-- Ctrl-C at any moment of generation: the next request gives the same tokens as before, and no page stays taken. Also
-- what q.host.uninterrupted and q.host.interruptible promise.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local cases = require "engine_cases"
local ffi = require "ffi"
local q = require "qeng"
q.device { device = "cpu", threads = 1 }
jit.off()  -- compiled code calls no hooks
ffi.cdef "int raise(int signal);"

local function interrupt() ffi.C.raise(2) end
local function interrupted(err) return type(err) == "table" and err.code == "interrupted" end

-- Runs fn, with Ctrl-C after `count` instructions. Returns whether it was raised.
local function run_interrupted(count, fn)
  local ok, err = pcall(function()
    debug.sethook(function()
      debug.sethook()
      interrupt()
    end, "", count)
    fn()
    debug.sethook()
  end)
  if not ok and not interrupted(err) then error(err, 0) end
  return not ok
end

-- ---------------------------------------------------------------- shields

local log = {}
local function note(text) log[#log + 1] = text end
local ok, err = pcall(function()
  q.host.uninterrupted(function()
    interrupt()
    note "kept"
    q.host.uninterrupted(note, "kept within")
  end)
  note "not reached"
end)
assert(not ok and interrupted(err), tostring(err))
ok, err = pcall(function()
  pcall(q.host.uninterrupted, function()
    local inner, raised = pcall(q.host.interruptible, function()
      interrupt()
      note "not reached"
    end)
    assert(not inner and interrupted(raised), "q.host.interruptible does not let Ctrl-C through")
    interrupt()
    note "shielded again"
    error "a failure hides no Ctrl-C"
  end)
  note "not reached"
end)
assert(not ok and interrupted(err), tostring(err))
assert(table.concat(log, ", ") == "kept, kept within, shielded again", table.concat(log, ", "))
-- A deferred interrupt is told and not raised.
q.host.defer_interrupt(true)
q.host.uninterrupted(function()
  interrupt()
  assert(not q.host.interrupted(), "told within a shield")
end)
assert(q.host.interrupted(), "not told after it")
q.host.defer_interrupt(false)
local a, b, c = q.host.uninterrupted(function(...) return select("#", ...), ... end, nil, 7)
assert(a == 2 and b == nil and c == 7, "results are lost")

-- ---------------------------------------------------------------- generation

local model, draft = cases.model("qwen3"), cases.model("qwen3", { layers = 1, seed = 9 })

-- Four requests for few pages, so they give way to each other. One runs past its context; one is cancelled at two
-- tokens.
local function generation(options, count)
  local engine, list = model:engine(options), {}
  for i = 1, 4 do
    local ids = {}
    for k = 1, 6 * i do ids[k] = (k * k + i) % 7 end
    list[i] = engine:submit {
      ids = ids, max_tokens = 14, temperature = i % 2, seed = i, stop_ids = {}, lookup = i == 3 and 4 or nil,
      context = "shift",
    }
  end
  local function go_on()
    repeat
      if #list[4].output >= 2 then engine:cancel(list[4]) end
    until not engine:step()
  end
  local was_interrupted = run_interrupted(count, go_on)
  go_on()
  local output, stats = {}, engine:stats()
  for i, r in ipairs(list) do output[i] = r.finish .. " " .. table.concat(r.output, " ", 1, i == 4 and 2 or nil) end
  assert(stats.used == 0 and stats.running == 0 and stats.waiting == 0, "pages or requests are left")
  if engine.drafter then assert(engine.drafter.runner.pool:stats().used == 0, "pages of the draft are left") end
  engine:close()
  return table.concat(output, "; "), was_interrupted
end

for _, case in ipairs { { pages = 10, max_batch = 3, chunk = 9, page_tokens = 4, context = 32 },
    { pages = 30, max_batch = 3, chunk = 9, page_tokens = 4, draft = draft } } do
  local whole = generation(case, 1e9)
  local trials, count, stride = 0, 1, tonumber(os.getenv "QENG_STRIDE") or 397
  while true do
    local output, was_interrupted = generation(case, count)
    assert(output == whole, ("Ctrl-C after %d instructions: %s, without: %s"):format(count, output, whole))
    if not was_interrupted then break end
    trials, count = trials + 1, count + stride
  end
  assert(trials > 20, "Ctrl-C was raised too seldom to tell")
  print(("Ctrl-C at %d moments of generation%s: the same tokens, no page left"):format(
    trials, case.draft and " with a draft model" or ""))
end
