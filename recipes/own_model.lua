-- A new architecture in one file, pretrained on a text byte by byte, which then goes on from a prompt. Copy it and
-- change the equations. This one has LayerNorm, attention that fades with distance (ALiBi) and squared ReLU.
--   qeng recipes/own_model.lua --data shakespeare.txt --steps 500

local q = require "qeng"
local opt = q.options {
  "Pretrains a transformer that is written out in this file, on the bytes of a text.",
  { "data", nil, "a text", kind = "input", required = true },
  { "layers", 2, "blocks", min = 1 }, { "width", 64, "of hidden states", min = 8 }, { "heads", 4, "of attention" },
  { "length", 64, "bytes that attention sees", min = 2 }, { "rows", 8, "pieces of text in a step", min = 1 },
  { "steps", 300, "optimizer steps", min = 0 }, { "lr", 3e-3, "peak learning rate", min = 0 },
  { "prompt", "The ", "what the model goes on from" }, "run", "device",
}
q.use_device(opt)
local width, length, heads, head = opt.width, opt.length, opt.heads, opt.width / opt.heads
local parameters, weights = {}, {}
local function parameter(name, shape)
  local random = { std = width ^ -0.5, seed = opt.seed, subsequence = #parameters }
  local w = shape[2] and q.randn(shape, random) or q.zeros(shape):fill(1)
  w:requires_grad(true)
  parameters[#parameters + 1], weights[name] = { name = name, tensor = w }, w
end
parameter("embed", { 256, width })
local block = { { "norm1", width }, { "norm2", width }, { "qkv", 3 * width, width }, { "out", width, width },
  { "up", 4 * width, width }, { "down", width, 4 * width } }
for i = 1, opt.layers do
  for _, each in ipairs(block) do parameter(i .. each[1], { each[2], each[3] }) end
end

local function norm(x, w)
  local centred = x - x:mean(-1, true)
  return centred * (centred:square():mean(-1, true) + 1e-5):rsqrt() * (w or 1)
end
local function linear(x, w) return x:matmul(w, { transpose_b = true }) end
local distance = q.arange(length):unsqueeze(2) - q.arange(length)
local slopes = 2 ^ ((q.arange(heads) + 1) * (-8 / heads))
local fading = q.where(distance:ge(0), -distance * slopes:reshape { heads, 1, 1 }, -1e30):compute()
-- Logits [rows, length, 256] of tokens [rows, length].
local function forward(tokens)
  local rows = tokens:shape()[1]
  local x = q.embedding(weights.embed, tokens:reshape { -1 }):reshape { rows, length, width }
  for i = 1, opt.layers do
    local three = linear(norm(x, weights[i .. "norm1"]), weights[i .. "qkv"]):reshape { rows, length, 3 * heads, head }
    local query, key, value = three:transpose(2, 3):split(heads, 2)  -- [rows, heads, length, head]
    local scores = query:matmul(key, { transpose_b = true }) * head ^ -0.5 + fading
    local mixed = scores:softmax():matmul(value):transpose(2, 3):reshape { rows, length, width }
    x = x + linear(mixed, weights[i .. "out"])
    x = x + linear(linear(norm(x, weights[i .. "norm2"]), weights[i .. "up"]):relu():square(), weights[i .. "down"])
  end
  return linear(norm(x), weights.embed)
end
local text, tokens = q.fs.read(opt.data), q.zeros({ opt.rows, length }, "i32")
local targets = q.zeros({ opt.rows * length }, "i32")
local optimizer = q.adamw(parameters, { lr = q.cosine(opt.lr, opt.steps, { warmup = math.floor(opt.steps / 20) }) })
local pass, loss = q.capture(function()  -- recorded once, replayed in each step
  local found = q.losses.cross_entropy(forward(tokens):reshape { -1, 256 }, targets)
  found:backward()
  return found
end)
local run = q.loop { out = opt.out, steps = opt.steps, optimizer = optimizer, parameters = parameters, settings = opt,
  seed = opt.seed, save_every = opt.save_every, leaves = { "model.safetensors" }, resume = opt.resume,
  overwrite = opt.overwrite }
for step in run:steps() do
  local ids, wanted = {}, {}
  for _, place in ipairs(q.uniform({ opt.rows }, { seed = opt.seed, subsequence = 1001 + step }):table()) do
    local start = math.floor(place * (#text - length))
    for i = 1, length do ids[#ids + 1], wanted[#wanted + 1] = text:byte(start + i, start + i + 1) end
  end
  tokens:set(ids); targets:set(wanted); pass:run()
  optimizer:step { clip = 1 }
  run:log { loss = loss }
end
q.save(opt.out .. "/model.safetensors", weights)
local written = opt.prompt
for _ = 1, 100 do  -- the likeliest byte each time
  local ids = { (written:sub(-length) .. ("\0"):rep(length)):byte(1, length) }
  local logits = q.no_grad(forward, q.tensor({ ids }, "i32"))[0][math.min(#written, length) - 1]
  written = written .. string.char(logits:argmax():item())
end
print(written .. "\n" .. opt.out .. ": model.safetensors, metrics.jsonl")
