-- A model of Qwen3.5-0.8B's shape with random weights, for bench/hybrid_peer.py, which measures llama.cpp in turns with
-- it: --write makes the GGUF file; else it answers "prefill" and "decode" on standard input with seconds.
--   qeng bench/hybrid.lua --file model.gguf --write q8_0 [--layers 24]
--   qeng bench/hybrid.lua --file model.gguf [--tokens 2048] [--threads 2]

local q = require "qeng"

local opt = q.options {
  "Measures a prompt and tokens of a hybrid model.",
  { "file", nil, "GGUF file", required = true },
  { "write", "", "write it, in this type" },
  { "layers", 24, "of the model that is written", min = 4 },
  { "value_heads", 16, "of its delta nets", min = 16 },
  { "tokens", 2048, "of the prompt", min = 2 },
  { "threads", 2, "of the CPU", min = 1 },
}
q.device { device = "cpu", threads = opt.threads }

if opt.write ~= "" then
  local model = q.random_model {
    architectures = q.json.array { "Qwen3_5ForCausalLM" }, model_type = "qwen3_5_text", hidden_size = 1024,
    intermediate_size = 3584, num_hidden_layers = opt.layers, num_attention_heads = 8, num_key_value_heads = 2,
    head_dim = 256, vocab_size = 248320, linear_num_key_heads = 16, linear_num_value_heads = opt.value_heads,
    linear_key_head_dim = 128, linear_value_head_dim = 128, tie_word_embeddings = true,
    rope_parameters = {
      rope_type = "default", rope_theta = 1e7, partial_rotary_factor = 0.25,
      mrope_section = q.json.array { 11, 11, 10 }, mrope_interleaved = true,
    },
  }
  model:save_gguf(opt.file, { type = opt.write })
  return
end

local model = q.load(opt.file)
local function ids(count)
  local list = {}
  for i = 1, count do list[i] = i * 104729 % model.config.vocab end
  return list
end

-- Seconds of a prompt, until its first token.
local function prefill()
  local engine = model:engine { max_batch = 1, context = opt.tokens + 64, remember = false }
  local r = engine:submit { ids = ids(opt.tokens), max_tokens = 1, temperature = 0, stop_ids = {} }
  local began = q.time()
  engine:finish()
  local seconds = q.time() - began
  assert(#r.output == 1)
  engine:close()
  return seconds
end

-- Seconds of a token, after a short prompt.
local function decode()
  local engine = model:engine { max_batch = 1, context = 512 }
  local r = engine:submit { ids = ids(8), max_tokens = 40, temperature = 0, stop_ids = {} }
  while #r.output < 8 do engine:step() end
  local began, from = q.time(), #r.output
  engine:finish()
  local seconds = (q.time() - began) / (#r.output - from)
  engine:close()
  return seconds
end

for line in io.lines() do
  io.write(("%.9g\n"):format(line == "prefill" and prefill() or decode()))
  io.flush()
end
