-- Streamed weights, for every kind of file: training (eager, captured, recomputed), logits and generation give the bits
-- of a mapped model. The limits force streaming, and the process keeps within them. Limits that are too small say what
-- is missing.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local golden = require "golden"
local streamed = require "streamed"
local q = require "qeng"
local flat, same = streamed.flat, streamed.same
q.device { device = "cpu", threads = 1 }

local function values_of(type, tied)
  return {
    architectures = q.json.array { type }, model_type = type:match "^(%w-)For":lower(), hidden_size = 512,
    intermediate_size = 1024,
    num_hidden_layers = 5, num_attention_heads = 8, num_key_value_heads = 4, vocab_size = 640,
    max_position_embeddings = 64,
    rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = tied, hidden_act = "silu",
  }
end

local documents = {}
for d = 1, 2 do
  local tokens, mask = {}, {}
  for i = 1, 4 + d do tokens[i], mask[i] = (i * (d + 2) + i * i) % 640, 1 end
  documents[d] = { tokens = tokens, mask = mask }
end
local micro_batch = golden.micro_batch(documents)

local function resident()
  local file = assert(io.open "/proc/self/statm")
  local pages = file:read "*n" and file:read "*n"
  file:close()
  return pages * 4096
end

-- limit: bytes the process keeps to.
local function train(model, how, limit)
  return streamed.train(model, micro_batch, how, { rank = 1, lr = 5e-3, steps = 3, after = function()
    assert(not limit or resident() <= limit, ("%d bytes are resident, over the limit of %d"):format(
      resident(), limit or 0))
  end })
end
local function generate(model) return streamed.generate(model, documents[1].tokens, 6) end

-- What the process needs beside weights, and the bytes of those.
local slack = 24e6
local function figures_of(path)
  streamed.collect()
  local probe = q.load(path, { weights = "stream", stream_slack = slack })
  local figures = probe.stream:figures()
  probe.stream:close()
  return figures.process, figures.total
end

-- What the mapped model gives.
local function of_mapped(path, generates)
  local mapped = q.load(path, { weights = "map" })
  local logits, output = flat(mapped:logits(documents[1].tokens)), generates and generate(mapped)
  return logits, output, train(mapped, "eager")
end

-- path: a file or folder; about: what it is; ways: of training.
local function check(path, about, ways)
  local logits, output, losses, adapter = of_mapped(path, #ways > 1)
  for _, how in ipairs(ways) do
    local process, total = figures_of(path)
    streamed.under_least_limit(process, total / 6, function(limit)
      local streaming = q.load(path, { weights = "stream", host_budget = limit, stream_slack = slack })
      local fits, err = pcall(function()
        same(about .. ": logits", flat(streaming:logits(documents[1].tokens)), logits)
        if output then same(about .. ": generated", generate(streaming), output) end
        local begun = streaming.stream:figures()
        local got, weights = train(streaming, how, limit)
        same(("%s, %s: losses"):format(about, how), got, losses)
        same(("%s, %s: adapter"):format(about, how), weights, adapter)
        local figures = streaming.stream:figures()
        if figures.bytes <= begun.bytes + figures.total then return "loose" end
        assert(figures.resident < figures.total and figures.fetch_ms > 0)
      end)
      streaming.stream:close()
      if not fits then error(err, 0) end
      same(about .. ": logits after closing", flat(streaming:logits(documents[1].tokens)),
        flat(streaming:logits(documents[1].tokens)))
      return err
    end)
  end
  print(("%s: the bits of the mapped model, streamed"):format(about))
end

local dir = os.tmpname()
os.remove(dir)
q.fs.mkdir(dir)
local function path(name) return dir .. "/" .. name end
-- Matrices of a shape are equal, because quantizing takes time.
local function write(type, architecture, tied, layers)
  local values, drawn = values_of(architecture, tied), {}
  values.num_hidden_layers = layers
  q.random_model(values, { weights = function(name, shape)
    if #shape == 1 then return q.zeros(shape, "f32", "weights"):fill(name:find "norm" and 1 or 0) end
    local key = table.concat(shape, "x")
    drawn[key] = drawn[key] or q.quantize(q.randn(shape, { std = 0.05, seed = shape[1] + 7 * shape[2] }), type)
    return drawn[key]:clone()
  end }):save_gguf(path(type .. ".gguf"), { type = type })
end
write("q8_0", "Qwen2ForCausalLM", true, 5)
write("q4_k", "Qwen2ForCausalLM", false, 5)
write("tq2_0", "Qwen2ForCausalLM", true, 12)  -- deeper, or the limit would leave room for all
write("q1_0", "LlamaForCausalLM", true, 12)   -- whose q and k lie in another order in the file
check(path "q8_0.gguf", "GGUF Q8_0, tied head", { "captured" })
check(path "q4_k.gguf", "GGUF Q4_K", { "eager", "captured", "recomputed" })
check(path "tq2_0.gguf", "GGUF TQ2_0", { "captured" })
check(path "q1_0.gguf", "GGUF Q1_0, llama", { "captured" })
local function write_floats()
  local small = values_of("Qwen2ForCausalLM", false)
  small.num_hidden_layers = 3
  q.random_model(small, { dtype = "bf16", std = 0.05 }):save(path "bf16")
end
write_floats()
check(path "bf16", "safetensors bf16", { "captured" })
local function write_bits()
  local bits = values_of("LlamaForCausalLM", false)
  bits.hidden_size, bits.intermediate_size, bits.num_hidden_layers = 1024, 2048, 32  -- of a thirty-second of the bytes
  q.onebit.random(bits, { rule = "counter", seed = 3 }):save(path "one_bit")
end
write_bits()
check(path "one_bit", "one bit a weight and a scale a row", { "captured" })

-- ---------------------------------------------------------------- what is refused

local function refused(code, pattern, fn)
  local result, err = q.try(fn)
  assert(not result and err.code == code and err.message:find(pattern),
    ("expected %s %s, got %s"):format(code, pattern, err and err.code .. ": " .. err.message or "no error"))
end
local file = path "q8_0.gguf"
refused("memory", "largest unit of .* exceeds .* of %-%-host%-budget; give at least", function()
  return q.load(file, { weights = "stream", host_budget = 20e6 })
end)
refused("unsupported", "trained in full cannot be streamed", function()
  return q.load(file, { weights = "stream", writable = true })
end)
refused("value", "host_budget is of streamed weights", function() return q.load(file, { host_budget = 1e9 }) end)
refused("value", "were copied into memory", function()
  local copied = q.load(file, { weights = "copy" })
  return q.stream.open({ "embedding", "layers" }, { {}, { copied.linears[1].weight } }, {})
end)
local process, total = figures_of(file)
local streaming = q.load(file,
  { weights = "stream", host_budget = process + math.floor(total / 2), stream_slack = slack })
refused("memory",
    "activations: %d+ bytes more would exceed .* %-%-host%-budget leaves.*Give %-%-host%-budget more", function()
  return q.zeros({ 12500000 }, "f32")
end)
refused("unsupported", "another model's weights are streamed", function()
  return q.load(file, { weights = "stream" })
end)
refused("unsupported", "full: every weight would change", function() return streaming:full() end)
refused("unsupported", "merge: .* load it with", function() return streaming:lora({ rank = 2 }):merge() end)
refused("unsupported", "fill: .*q_proj.weight is a weight that is streamed", function()
  return streaming.linears[1].weight:fill(0)
end)
refused("unsupported", "copy: .* is a weight that is streamed", function()
  return streaming.linears[1].weight:copy(streaming.linears[1].weight)
end)
streaming.stream:close()
q.zeros({ 12500000 }, "f32"):free()  -- the limit went with the stream
q.fs.remove(dir)
