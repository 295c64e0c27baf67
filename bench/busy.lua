-- Speeds of one process on a machine that may be busy, each the mean over some seconds:
--   qeng bench/busy.lua --threads 2 [--gguf FILE] [--seconds 1] [--only decode_4]
-- It prints lines "name value unit". bench/busy.sh runs it beside busy processes.

local q = require "qeng"
local demo = require "qeng.train.demo"
local paged = require "qeng.infer.paged"

local opt = q.options {
  "Measures a forward pass, decoding, a training step and products, as they come, not at their best.",
  { "gguf", "", "a real model's file, for decoding" },
  { "seconds", 1, "time for each figure", min = 0.01, number = true },
  { "only", {}, "figures by name" },
  "device",
}
q.use_device(opt)

local wanted = {}
for _, name in ipairs(opt.only) do wanted[name] = true end

-- Runs body() again and again, twice before that to warm up. Prints how often per second, times `amount`.
local function measure(name, unit, amount, body)
  if next(wanted) and not wanted[name] then return end
  body()
  body()
  local begin, count = q.time(), 0
  repeat
    body()
    count = count + 1
  until q.time() - begin >= opt.seconds
  print(("%s %.5g %s"):format(name, amount * count / (q.time() - begin), unit))
end

local function wait(logits) logits:rows(0, 1):reshape { logits:shape()[2] }:rows(0, 1):item() end

-- Reads a prompt of 32 tokens. Times steps of `batch` sequences from 64 tokens on; they begin anew at 192.
local function decoding(model, batch)
  local runner = paged.new(model, { pages = 13 * batch, rows = 64 * batch, sequences = batch, remember = false })
  local vocab, ids, parts, heads = model.config.vocab, {}, {}, {}
  local function restart()
    for i = 1, batch do
      if parts[i] then runner.pool:close(parts[i].id) end
      ids[i], heads[i] = {}, i - 1
      for k = 1, 64 do ids[i][k] = (i * 7919 + k * 104729) % vocab end
      parts[i] = { id = runner.pool:open(0), count = 64 }
      runner:extend(parts[i].id, ids[i])
      runner:run({ parts[i] }, { 63 }, wait)
      parts[i].count = 1
    end
  end
  restart()
  return function()
    if #ids[1] == 192 then restart() end
    for i = 1, batch do
      table.insert(ids[i], (i * 31 + #ids[i]) % vocab)
      runner:extend(parts[i].id, ids[i], #ids[i], #ids[i])
    end
    runner:run(parts, heads, wait)
  end
end

local dir = demo.model()
local tiny = q.load(dir)
local prompt = {}
for k = 1, 32 do prompt[k] = k * 7919 % tiny.config.vocab end
measure("forward", "passes/s", 1, function() q.scope(function() wait(tiny:logits(prompt)) end) end)
measure("decode_1", "tokens/s", 1, decoding(tiny, 1))
measure("decode_4", "tokens/s", 4, decoding(tiny, 4))

if opt.gguf ~= "" then
  local real = q.load(opt.gguf)
  measure("real_1", "tokens/s", 1, decoding(real, 1))
  measure("real_4", "tokens/s", 4, decoding(real, 4))
end

local function product(name, m, n, k, dtype)
  local x, w = q.randn({ m, k }, { dtype = dtype, seed = 1 }), q.randn({ n, k }, { dtype = dtype, seed = 2 })
  measure(name, "GFLOP/s", 2e-9 * m * n * k, function() q.scope(function() wait(q.linear(x, w)) end) end)
end
product("gemm_f32", 2048, 896, 896, "f32")
product("gemm_bf16", 2048, 896, 4864, "bf16")
product("gemm_small", 512, 128, 128, "f32")

local x = q.randn({ 1, 2048 }, { seed = 3 })
for _, rows in ipairs { 256, 4096 } do
  local w = q.quantize(q.randn({ rows, 2048 }, { seed = 4 }), "q4_k")
  measure("row_linear_" .. rows, "products/s", 1, function()
    q.scope(function() wait(q.row_linear(x, { w })[1]) end)
  end)
end
