-- How fast a prompt goes in by how the cache keeps keys and values: all kinds in one process, in turns, so that what
-- differs between two processes, or changes with the machine's clock, is the same for all.
--   build/release/qeng bench/kv_prompt.lua MODEL TOKENS TURNS THREADS KIND...
-- Prints the seconds of each turn as JSON: {"f16": [...], ...}.
local bench = require "qeng.infer.decode_bench"
local q = require "qeng"

local path, tokens, turns, threads = arg[1], tonumber(arg[2]), tonumber(arg[3]), tonumber(arg[4])
assert(threads and arg[5], "usage: kv_prompt.lua MODEL TOKENS TURNS THREADS KIND...")
q.device { threads = threads }
local model, seconds = q.load(path), {}
for turn = 1, turns do
  for i = 5, #arg do
    local kind = arg[5 + (i + turn) % (#arg - 4)]  -- each is the first in turn
    seconds[kind] = seconds[kind] or {}
    table.insert(seconds[kind], (bench.prefill(model, tokens, { kv = kind, repeats = 2 })))
  end
end
print(q.json.encode(seconds))
