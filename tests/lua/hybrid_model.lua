-- Small models of gated delta nets and gated attention, for tests.
local q = require "qeng"
local formula = require "formula"

local function values(more)
  local v = {
    architectures = q.json.array { "Qwen3_5ForCausalLM" }, model_type = "qwen3_5_text", hidden_size = 32,
    intermediate_size = 48, num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 32,
    vocab_size = 40, max_position_embeddings = 256, linear_num_key_heads = 2, linear_num_value_heads = 4,
    linear_key_head_dim = 16, linear_value_head_dim = 16, rope_parameters = {
      rope_type = "default", rope_theta = 1e4, partial_rotary_factor = 0.25, mrope_section = q.json.array { 2, 1, 1 },
      mrope_interleaved = true,
    },
  }
  for key, value in pairs(more or {}) do v[key] = value end
  return v
end
local mixture = {
  architectures = q.json.array { "Qwen3_5MoeForCausalLM" }, model_type = "qwen3_5_moe_text", num_experts = 4,
  num_experts_per_tok = 2, moe_intermediate_size = 32, shared_expert_intermediate_size = 32,
}
local next_ = {
  architectures = q.json.array { "Qwen3NextForCausalLM" }, model_type = "qwen3_next", num_experts = 4,
  num_experts_per_tok = 2, moe_intermediate_size = 32, shared_expert_intermediate_size = 32,
}
local kinds = { dense = {}, mixture = mixture, next = next_ }
local function fresh(more, opt)
  opt = opt or {}
  opt.weights = opt.weights or formula
  return q.random_model(values(more), opt)
end
-- Weights of heads that remember 10,000 tokens: what passes from one document to the next shows.
local function slow(name, shape)
  local w = formula(name, shape)
  return name:find "A_log" and w - 9 or w
end
local tokens = {}
for i = 1, 90 do tokens[i] = (7 * i * i + i) % 40 end

return {
  values = values, fresh = fresh, kinds = kinds, mixture = mixture, next_ = next_, slow = slow,
  tokens = tokens,
}
