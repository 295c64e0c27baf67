-- The operations of a prompt and of a decoding step of a model, each against the device's measured limits.

local paged = require "qeng.infer.paged"
local q = require "qeng.core"

-- Waits until the device has computed them.
local function wait(logits) logits:rows(0, 1):reshape { logits:shape()[2] }:rows(0, 1):item() end

-- A profile with what a person reads of it. ms: of a step that was not profiled, with what is between the operations.
local function told(profile, seconds)
  local ops = {}
  for i, op in ipairs(profile.ops) do
    local ms = math.max(op.ms, 1e-9)
    ops[i] = {
      name = op.name, calls = op.calls, ms = op.ms, step_share = op.ms / math.max(profile.total_ms, 1e-9),
      flops = op.flops, bytes = op.bytes, gflop_s = op.flops / ms / 1e6, gb_s = op.bytes / ms / 1e6,
      limit_share = op.share,
    }
  end
  return { ms = 1e3 * seconds, ops_ms = profile.total_ms, limit_share = profile.share, ops = q.json.array(ops) }
end

local function measure(runner, model, tokens)
  local ids, part, result = {}, nil, {}
  for k = 1, tokens do ids[k] = k * 104729 % model.config.vocab end
  local function prompt()
    if part then runner.pool:close(part.id) end
    part = { id = runner.pool:open(0), count = tokens }
    runner:extend(part.id, ids)
    runner:run({ part }, { tokens - 1 }, wait)
  end
  local function decode()
    part.count = 1
    runner:extend(part.id, { ids[1] })
    runner:run({ part }, { 0 }, wait)
  end
  local function timed(step)
    local begin = q.time()
    step()
    return q.time() - begin
  end
  prompt()  -- makes what is made once
  local seconds = timed(prompt)
  result.prefill = told(q.profile(prompt), seconds)
  decode()
  decode()  -- captures the program that the next replay
  seconds = timed(decode)
  result.decode = told(q.profile(decode), seconds)
  return result
end

-- {prefill =, decode =} of a prompt of so many tokens, and of a step after it: {ms, ops_ms = of the operations alone,
-- limit_share = of all of them, ops = {{name, calls, ms, step_share, flops, bytes, gflop_s, gb_s, limit_share}...}}.
-- The cache is one of its own, of dtype kv. It takes as long as three such prompts and a few steps, and the first time
-- a second to measure the limits.
return function(model, tokens, kv)
  return model.runtime:use(function()
    local runner = paged.new(model, {
      pages = paged.pages(model, tokens + 4) + 1, kv = kv, rows = tokens, sequences = 1, remember = false,
    })
    local ok, found = pcall(measure, runner, model, tokens)
    runner:free()
    if not ok then error(found, 0) end
    found.limits = q.limits { if_room = true }
    return found
  end)
end
