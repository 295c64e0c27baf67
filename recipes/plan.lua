-- Says what a model will need and take, before anything is loaded: memory by account on device and host, the time of a
-- step at the device's measured limits, and whether it fits.
--   qeng recipes/plan.lua --model 7b                          # all ways of training it, and inference
--   qeng recipes/plan.lua --model DIR --mode lora --row-tokens 2048 --recompute
--   qeng recipes/plan.lua --model 13b --mode lora --stored q4_k --device-budget 6G --host-budget 16G --link 25
--   qeng recipes/plan.lua --model qwen3.5 --device gb10 --examples 24315 --example-tokens 3000   # which trains there
--   qeng recipes/plan.lua --model 70b --stored q4_k --peers recipes/cluster.json --batch 8   # several machines as one

local q = require "qeng"
local options = require "qeng.console.options"
local machines = require "qeng.plan.machines"
local plan_text = require "qeng.plan.text"
local shapes = require "qeng.plan.shapes"
local simulate = require "qeng.peers.simulate"

local opt = q.options {
  "Says what training or inference of a model needs, before anything is loaded.",
  { "model", nil, "config.json, folder, GGUF file, name on a hub, or a shape: " .. table.concat(shapes.names(), " ")
    .. "; or all of qwen3.5", required = true },
  "model_file", "plan",
  { "mode", "all", "what to plan", choices = { "all", "full", "lora", "onebit", "inference" } },
  { "active", 1.5e9, "one-bit training by phases: weights that learn at once; 0: all", min = 0 },
  { "eval", true, "a held-out loss is measured too, as training does by itself; --eval=false: it is not" },
  { "bandwidth", 0, "GB/s of a GPU that is not here; with --flops", min = 0, number = true },
  { "flops", 0, "TFLOP/s of a GPU that is not here; with --bandwidth", min = 0, number = true },
  { "link", 0, "GB/s from host to device, for streamed weights", min = 0, number = true },
  "cluster", "device",
}
if opt.peers then return print(simulate(opt)) end
if (opt.bandwidth > 0) ~= (opt.flops > 0) then
  q.error("usage", "--bandwidth and --flops go together: they stand in for a device that is not here")
end
if machines.has(opt.device) then
  local here = machines.here(opt.device, q.devices())
  if here then
    print(("%s is here: planned at what %s measures, not at what is published"):format(opt.device, here))
    opt.device = here
  else
    opt.machine, opt.device = opt.device, "cpu"
  end
end
local ok, err = pcall(q.use_device, opt)
if not ok and err.code == "value" then
  q.error("value", ("%s, or the machines %s"):format(err.message, table.concat(machines.names(), ", ")))
elseif not ok then
  error(err, 0)
end

local function rate(value, unit) return value > 0 and value * unit or nil end
local function plan(mode, active, model)
  local given = { model = model or opt.model, model_file = opt.model_file }
  for _, entry in ipairs(options.entries "plan") do given[entry[1]] = opt[entry[1]] end
  given.mode, given.active = mode, active and active > 0 and active or nil
  given.bandwidth, given.flops, given.link = rate(opt.bandwidth, 1e9), rate(opt.flops, 1e12), rate(opt.link, 1e9)
  local frozen = opt.mode ~= "all" or mode == "lora" or mode == "inference"  -- which of all ways --stored is of
  if not frozen then given.stored = nil end
  if opt.mode == "all" and (mode == "inference" or mode == "onebit") then
    given.ranks, given.zero, given.network = nil, nil, nil
  end
  if opt.mode == "all" and mode == "inference" then
    given.examples, given.example_tokens, given.epochs = nil, nil, nil
  end
  return q.plan(given)
end
local family = shapes.family(opt.model)
if family[1] then
  return print(plan_text.family(function(model, mode) return plan(mode, nil, model) end, family,
    opt.mode == "all" and { "full", "lora" } or { opt.mode }))
end
if opt.mode ~= "all" then return print(plan(opt.mode, opt.active)) end
print(plan_text.compare(plan, opt.active))
