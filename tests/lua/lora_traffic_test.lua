-- What a training step of Qwen2.5-1.5B moves, from the list of its operations and their shapes: each operand once.
-- A layer of LoRA stays within 1.15 of the least: every product reads its operands and writes its result once, and what
-- an adapter of rank 16 needs beside is one more reading of what its layers read, forward and backward, and one of
-- what comes back. And a layer is so many operations, of LoRA and of full training.
local q = require "qeng"
q.device { device = "cpu", threads = 1 }

local h, kv, ffn, rows, rank = 1536, 256, 8960, 8192, 16
local function config(layers)
  return {
    architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = h,
    intermediate_size = ffn, num_hidden_layers = layers, num_attention_heads = 12, num_key_value_heads = 2,
    vocab_size = 151936, max_position_embeddings = 32768, rms_norm_eps = 1e-6, rope_theta = 1000000,
    tie_word_embeddings = true, hidden_act = "silu",
  }
end

-- The bytes of each kind of operation, and the number of all, of the program's text.
local function traffic(program)
  local bytes, count = {}, 0
  for line in tostring(program):gmatch "[^\n]+" do
    local name, megabytes = line:match "([%w_]+)%b()  [%d.e+]+ MFLOP  ([%d.e+-]+) MB"
    assert(name, line)
    count, bytes[name] = count + 1, (bytes[name] or 0) + 1e6 * tonumber(megabytes)
  end
  return bytes, count
end

-- Of a model with so many layers.
local function step(layers, mode)
  return q.rehearsal.run(function()
    local model = q.random_model(config(layers), {
      dtype = "bf16", weights = function(_, shape) return q.empty(shape, "bf16", "weights") end,
    })
    if mode == "lora" then model:lora { rank = rank } else model:full() end
    local micro_batch = q.micro_batch(rows, 64)
    local program = q.capture(function() model:loss(micro_batch, rows):backward() end)
    local bytes, count = traffic(program)
    return q.json.encode { bytes = bytes, count = count }
  end, { gpu = true })
end

-- What one layer more adds.
local function layer(mode)
  local one, two = q.json.decode(step(1, mode)), q.json.decode(step(2, mode))
  local total, kinds = 0, {}
  for name, bytes in pairs(two.bytes) do
    local more = bytes - (one.bytes[name] or 0)
    total = total + more
    if more > 0 then kinds[#kinds + 1] = ("%s %.0f"):format(name, more / 1e6) end
  end
  table.sort(kinds)
  return total, two.count - one.count, table.concat(kinds, ", ")
end

-- Elements of a row; what stands alone is a vector of the width of the residual stream.
local wide = h + 2 * kv
local forward = 4 * h                      -- the sum and its norm
  + h + wide + 2 * (h + kv)                -- q, k, v from one reading of x; RoPE
  + wide + h + 2 * h                       -- attention; o
  + 4 * h + h + 2 * ffn + 3 * ffn          -- sum and norm; gate, up; SwiGLU
  + ffn + h                                -- down
local backward = h + ffn + 5 * ffn         -- down; SwiGLU
  + 2 * ffn + h + 4 * h                    -- gate and up; norm
  + 2 * h + 2 * (2 * h + 2 * kv) + h       -- o; attention reads q, k, v, o, do
  + 2 * (h + kv) + wide + h + 4 * h        -- RoPE; q, k, v; norm
local adapters = 3 * h + ffn               -- x of q, k, v, of o, of gate and up, of down
  + wide + h + 2 * ffn + h                 -- what comes back to each
  + 3 * h + ffn                            -- x again, for the gradients of a
local weights = 2 * (h * (wide + h) + 3 * h * ffn)
local least = 2 * ((forward + backward + adapters) * rows + weights)

local bytes, count, kinds = layer "lora"
print(("LoRA: %.2f GB a layer, %.1f of 28; %.3f of the least; %d operations; MB: %s"):format(bytes / 1e9,
  28 * bytes / 1e9, bytes / least, count, kinds))
assert(bytes <= 1.15 * least, "a layer of LoRA moves more than 1.15 of the least")
assert(count <= 33, "a layer of LoRA is more operations than it was")
bytes, count, kinds = layer "full"
print(("full: %.2f GB a layer; %d operations; MB: %s"):format(bytes / 1e9, count, kinds))
assert(count <= 25, "a layer of full training is more operations than it was")
