-- Writes a small random Qwen2 model with a tokenizer, and chat data, for the transcripts:  qeng small_model.lua OUT
local q = require "qeng"
local out = assert(arg[1], "usage: small_model.lua OUT")
local words = { "red", "green", "blue", "one", "two", "three", "the", "cat", "dog", "sees", "likes", "a",
  "and", "says" }
local texts, lines = {}, {}
local state = 12345
local function pick()
  state = (state * 1103515245 + 12345) % 2147483648
  return words[math.floor(state / 65536) % #words + 1]
end
for i = 1, 300 do
  local prompt, answer = {}, {}
  for k = 1, 3 + i % 5 do prompt[k] = pick() end
  for k = 1, 2 + i % 4 do answer[k] = pick() end
  lines[i] = q.json.encode { prompt = table.concat(prompt, " "), completion = table.concat(answer, " ") }
  texts[i] = table.concat(prompt, " ") .. " " .. table.concat(answer, " ")
end
q.fs.mkdir(out)
local model = q.random_model({
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 48, intermediate_size = 96,
  num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 320, max_position_embeddings = 256,
  rms_norm_eps = 1e-6,
  rope_theta = 10000, tie_word_embeddings = true, hidden_act = "silu",
}, { seed = 1, std = 0.1 })
model:save(out .. "/model")
q.train_bpe(texts, { vocab = 300, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, out = out .. "/model" })
q.fs.write(out .. "/data.jsonl", table.concat(lines, "\n") .. "\n")
