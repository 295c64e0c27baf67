-- The sets of options that most recipes share: the device, the model, where its weights are, and a run that trains it.

local options = require "qeng.console.options"
local q = require "qeng.core"

options.set("device", {
  { "device", "auto", "where to compute: auto (a GPU if there is one), cpu, cuda, cuda:N, opencl" },
  { "threads", 0, "CPU threads, 0: the cores this process may use", min = 0, max = 4096 },
  { "device_budget", nil, "memory that tensors may take on the device, as 8G: what needs more is an error",
    kind = "bytes" },
})

options.set("model_file", { { "model_file", nil, "a Lua file that says what the model is", kind = "input" } })

options.set("dtype", {
  { "dtype", nil, "f32 or bf16, by default the file's own (f16 is kept, and computed in f32)",
    choices = { "f32", "bf16" } },
})

options.set("model", {
  { "model", nil, "Hugging Face folder, .gguf file, or org/name[@revision] on the hub", kind = "input",
    required = true },
  "model_file", "dtype",
})

options.set("weights", {
  { "weights", nil, "map the file, copy it into memory (faster; by default if there is room), or stream it within "
    .. "--host-budget", choices = { "map", "copy", "stream" } },
  { "host_budget", nil, "with --weights stream: memory of the whole process, as 16G; with a GPU, of what is pinned, "
    .. "beyond which weights are read from the file", kind = "bytes" },
  { "stream_keep", nil, "with --weights stream to a GPU: bytes of weights that stay there, as recipes/plan.lua says; "
    .. "by default half of what --device-budget leaves", kind = "bytes" },
})

options.set("run", {
  { "out", "out", "output folder", kind = "folder" },
  { "seed", 0, "seed of all that is drawn: order, new weights, dropout", min = 0 },
  { "save_every", 100, "steps between checkpoints, 0: at the end", min = 0 },
  { "resume", false, "go on from the newest checkpoint in --out" },
})

-- Chooses the device that the options of the set "device" name.
return function(opt) q.device { device = opt.device, threads = opt.threads, budget = opt.device_budget } end
