-- A step of full training of a model of experts: forward, backward, AdamW.
--   qeng bench/experts_model.lua [--threads 2] [--steps 5] [--profile]
-- bench/experts_model_peer.py measures transformers in turns with it: for each line on --serve's standard input it
-- takes so many steps, and answers with the seconds of one.

local q = require "qeng"

local opt = q.options {
  "Measures steps of training a small Qwen3-MoE.",
  { "threads", 2, "threads of the CPU", min = 1, integer = true },
  { "steps", 5, "steps of a figure", min = 1, integer = true },
  { "dtype", "f32", "of weights and activations", choices = { "f32", "bf16" } },
  { "profile", false, "says where the time of forward and backward goes" },
  { "serve", false, "measures once for each line of standard input" },
}
q.device { device = "cpu", threads = opt.threads }

local tokens, rate = 512, 1e-4
local model = q.random_model({
  architectures = q.json.array { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", hidden_size = 512,
  intermediate_size = 1024, moe_intermediate_size = 256, num_experts = 32, num_experts_per_tok = 8,
  norm_topk_prob = true, num_hidden_layers = 4, num_attention_heads = 8, num_key_value_heads = 4, head_dim = 64,
  vocab_size = 8192, max_position_embeddings = 2048,
}, { dtype = opt.dtype }):full()
local adamw = q.adamw(model:trainable(), { lr = rate, decay = 0.1 })

local batch, ids, targets, positions = q.micro_batch(tokens, 1), {}, {}, {}
for i = 1, tokens do ids[i], positions[i] = (i * 7919 + math.floor(i * i / 7)) % 8192, i - 1 end
for i = 1, tokens do targets[i] = ids[i + 1] or -1 end
batch.tokens:set(ids) batch.targets:set(targets) batch.positions:set(positions)
batch.cu_q:set { 0, tokens } batch.scale:fill(1 / (tokens - 1))

local program, loss = q.capture(function()
  local value = model:loss(batch, tokens)
  value:backward()
  return value
end)

-- The median seconds of so many steps, and of their forward and backward passes alone.
local function measure(steps)
  local whole, passes = {}, {}
  for i = 1, steps do
    local begin = q.time()
    program:run()
    loss:item()
    passes[i] = q.time() - begin
    adamw:step { clip = 1 }
    whole[i] = q.time() - begin
  end
  table.sort(whole)
  table.sort(passes)
  return whole[math.ceil(steps / 2)], passes[math.ceil(steps / 2)]
end

measure(1)
if opt.serve then
  for line in io.lines() do
    local step, pass = measure(tonumber(line))
    io.write(("%.9g %.9g %.9g\n"):format(step, pass, loss:item()))
    io.flush()
  end
  return
end
local step, pass = measure(opt.steps)
print(("%.1f ms a step, %.1f of them forward and backward; %.0f tokens/s, loss %.4f"):format(1e3 * step, 1e3 * pass,
  tokens / step, loss:item()))
if opt.profile then print(program:profile()) end
