-- Measures tokens a second of prompt and output, batch by batch, against the roofline.
--   qeng recipes/bench_decode.lua --model model.gguf --batch 1,4,16,64

local q = require "qeng"
local bench = require "qeng.infer.decode_bench"
local paged = require "qeng.infer.paged"

local opt = q.options {
  "Measures prefill and decode. The limit of decode is the bytes of the file and of the cache over the bandwidth\n" ..
    "that the same run measures. That of prefill is the work of its products over the measured rate of large ones.",
  "model",
  { "batch", { 1, 2, 4, 8, 16, 32, 64 }, "numbers of sequences that decode together", min = 1 },
  { "prompt", 512, "tokens of the prompt in prefill", min = 1 },
  { "context", 64, "tokens of each sequence before decoding", min = 1 },
  { "tokens", 32, "steps of decoding that are timed", min = 1 },
  { "repeats", 3, "prefills that are timed, of which the best counts", min = 1 },
  "kv",
  { "out", "", "a file for the figures, as JSON", kind = "output", holds = { "decode", "figures of this recipe" } },
  "weights", "device",
}
q.use_device(opt)

local model = q.load(opt.model, opt)
local kv = q.kv_option(opt, model) or model.dtype
local weights = bench.weight_bytes(model)
local found = { model = opt.model, weight_bytes = weights, kv = kv, decode = {} }
print(("%s: matrices of %.1f MB, a token's keys and values %.1f KB (%s)"):format(opt.model, weights / 1e6,
  paged.page_bytes(model, kv, 1) / 1e3, kv))

local seconds = bench.prefill(model, opt.prompt, { kv = kv, repeats = opt.repeats })
local least, rate = bench.prefill_limit(model, opt.prompt, kv, q.limits())
found.prefill = {
  tokens = opt.prompt, tokens_per_second = opt.prompt / seconds, limit = opt.prompt / least, share = least / seconds,
  rate = rate,
}
print(("prefill   %5d tokens  %10.2f tokens/s  %3.0f %% of the limit of %.1f, at %.0f GFLOP/s"):format(
  opt.prompt, opt.prompt / seconds, 100 * least / seconds, opt.prompt / least, rate / 1e9))
for _, n in ipairs(opt.batch) do
  local times = bench.decode(model, n, opt.context, opt.tokens, { kv = kv })
  local limit = bench.limit(model, n, opt.context + opt.tokens / 2, kv, times.bandwidth)
  print(("decode    batch %5d   %10.2f tokens/s  (best step %.2f)  %3.0f %% of the limit of %.1f, at %.1f GB/s"):format(
    n, n / times.median, n / times.best, 100 * limit / times.median, n / limit, times.bandwidth / 1e9)
    .. (times.nodes > 0 and (", %d kernels a step"):format(times.nodes) or ""))
  found.decode[#found.decode + 1] = {
    batch = n, tokens_per_second = n / times.median, best = n / times.best, limit = n / limit,
    share = limit / times.median, bandwidth = times.bandwidth, nodes = times.nodes,
  }
end
if opt.out ~= "" then q.fs.write(opt.out, q.json.encode(found, { pretty = true }) .. "\n") end
