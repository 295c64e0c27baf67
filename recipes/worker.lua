-- Computes layers of models for others, who have a key that is known here (recipes/WORKERS.md).
--   qeng recipes/worker.lua [--listen 0.0.0.0:28766] [--model ~/Qwen3-8B-Q4_K_M.gguf] [--device-budget 8G]
-- A model that is not on this machine's disk is sent by who asks for it, and kept. Ctrl-C ends it.

local q = require "qeng"

local opt = q.options {
  "Computes layers of models for coordinators whose keys are known here (q.keys).",
  "worker",
  "device",
}
q.use_device(opt)

local worker, address = q.worker(opt)
print(("worker %s at %s"):format(worker.name, address))
worker:run()
