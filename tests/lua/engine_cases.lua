-- Random schedules of the continuous-batching engine, each request compared with itself alone. engine_test.lua and
-- tests/campaigns/engine.lua use them.

local lora = require "qeng.model.lora"
local q = require "qeng"

local cases = {}

local families = {
  qwen2 = { architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2" },
  qwen3 = { architectures = q.json.array { "Qwen3ForCausalLM" }, model_type = "qwen3", head_dim = 32 },
  llama = { architectures = q.json.array { "LlamaForCausalLM" }, model_type = "llama" },
  mistral = { architectures = q.json.array { "MistralForCausalLM" }, model_type = "mistral", sliding_window = 20 },
  gemma2 = {
    architectures = q.json.array { "Gemma2ForCausalLM" }, model_type = "gemma2", sliding_window = 20,
    attn_logit_softcapping = 3, final_logit_softcapping = 8, query_pre_attn_scalar = 32,
    hidden_act = "gelu_pytorch_tanh",
  },
  gemma3 = {
    architectures = q.json.array { "Gemma3ForCausalLM" }, model_type = "gemma3_text", sliding_window = 20,
    sliding_window_pattern = 2,
    query_pre_attn_scalar = 32, hidden_act = "gelu_pytorch_tanh",
  },
  qwen3_moe = {
    architectures = q.json.array { "Qwen3MoeForCausalLM" }, model_type = "qwen3_moe", num_experts = 8,
    num_experts_per_tok = 3, moe_intermediate_size = 32, norm_topk_prob = true,
  },
}
cases.families = { "qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3", "qwen3_moe" }

-- A small model of a family; its weights are large enough that tokens vary.
function cases.model(family, opt)
  opt = opt or {}
  local values = {
    hidden_size = 64, intermediate_size = 96, num_hidden_layers = opt.layers or 2, num_attention_heads = 4,
    num_key_value_heads = 2,
    vocab_size = opt.vocab or 320, max_position_embeddings = opt.context or 256, rms_norm_eps = 1e-6,
    rope_theta = 10000, tie_word_embeddings = true,
    hidden_act = "silu", head_dim = 32,
  }
  for key, value in pairs(families[family]) do values[key] = value end
  return q.random_model(values, { seed = opt.seed or 1, std = opt.std or 0.12, dtype = opt.dtype })
end

-- An adapter for requests, as Model:read_adapter makes them; on some layers only.
function cases.adapter(model, seed)
  local adapter = { layers = {} }
  for i, layer in ipairs(model.linears) do
    if (i + seed) % 3 ~= 0 then
      local shape_a, shape_b = lora.shapes(layer, 4)
      adapter.layers[layer.name] = {
        a = q.keep(q.randn(shape_a, { std = 0.2, seed = seed, subsequence = 2 * i, dtype = model.dtype })),
        b = q.keep(q.randn(shape_b, { std = 0.2, seed = seed, subsequence = 2 * i + 1, dtype = model.dtype })),
        scale = 0.7,
      }
    end
  end
  return adapter
end

-- A generator of whole numbers below n, the same on every machine.
function cases.random(seed)
  local state = seed * 2654435761 % 2147483648
  return function(n)
    state = (state * 1103515245 + 12345) % 2147483648
    return math.floor(state / 65536) % n
  end
end

-- The tokens that a request gives when it is the only one.
function cases.alone(model, opt, engine)
  local own = engine or model:engine { max_batch = 1, pages = 16, chunk = 300, remember = false }
  local given = {}
  for name, value in pairs(opt) do given[name] = value end
  local r = own:submit(given)
  own:finish()
  if not engine then own:close() end
  return r
end

-- `count` requests: many share beginnings, of `shared` tokens (16) or more, adapters are mixed, half are sampled.
function cases.requests(model, count, below, shared)
  local adapters = { false, cases.adapter(model, 1), cases.adapter(model, 2) }
  local beginnings = {}
  for i = 1, 4 do
    beginnings[i] = {}
    for k = 1, (shared or 16) + below(80) do beginnings[i][k] = below(320) end
  end
  local list = {}
  for i = 1, count do
    local ids = {}
    if below(3) > 0 then
      local beginning = beginnings[below(4) + 1]
      for k = 1, #beginning - (below(2) * below(#beginning)) do ids[k] = beginning[k] end
    end
    for _ = 1, 1 + below(40) do ids[#ids + 1] = below(320) end
    list[i] = {
      ids = ids, max_tokens = 1 + below(40), temperature = below(2), top_k = below(2) * 40,
      repetition_penalty = 1 + below(2) * 0.1, seed = i,
      stop_ids = { [below(320)] = true }, adapter = adapters[below(4)],
    }
  end
  return list
end

local function same(a, b, length)
  for i = 1, length do
    if a[i] ~= b[i] then return false, i end
  end
  return true
end

-- Runs a random schedule: `count` requests arrive at random steps, and some are cancelled. Each gives the tokens that
-- it gives alone (a cancelled one the first of them), and no memory stays taken. Returns figures.
function cases.schedule(seed, opt)
  opt = opt or {}
  local below = cases.random(seed)
  local family = cases.families[seed % #cases.families + 1]
  local model = opt.model or cases.model(family, { seed = seed, dtype = opt.dtype })
  local list = cases.requests(model, opt.count or 64, below, opt.shared)
  local setup = {
    kv = opt.kv, max_batch = ({ 2, 8, 16, 64 })[below(4) + 1], chunk = ({ 1, 7, 33, 256 })[below(4) + 1],
    pages = opt.pages or 12 + below(36),
    remember = below(4) > 0, page_tokens = opt.page_tokens or 16, draft = opt.draft,
    draft_always = opt.draft == "mtp" or nil,
  }
  local engine = model:engine(setup)
  local requests, next_, cancelled, guessed = {}, 1, 0, 0
  local busy = true
  while busy or next_ <= #list do
    for _ = 1, math.min(below(12), #list - next_ + 1) do
      local given = {}
      for name, value in pairs(list[next_]) do given[name] = value end
      if below(3) == 0 then given.lookup = 1 + below(6) end
      requests[next_] = engine:submit(given)
      next_ = next_ + 1
    end
    if below(4) == 0 and next_ > 1 then
      local victim = requests[1 + below(next_ - 1)]
      if victim.state ~= "done" and below(3) == 0 then
        engine:cancel(victim)
        cancelled = cancelled + 1
      end
    end
    busy = engine:step()
  end
  local stats, preempted, reused, accepted = engine:stats(), 0, 0, 0
  if stats.used ~= 0 or engine.runner.pool:stats().sequences ~= 0 then
    error(("seed %d: %d pages are still in use"):format(seed, stats.used))
  end
  engine:close()
  local lone = model:engine { kv = opt.kv, max_batch = 1, pages = 16, chunk = 300, remember = false }
  for i, r in ipairs(requests) do
    local expected = cases.alone(model, list[i], lone)
    if r.finish ~= "cancelled" and (r.finish ~= expected.finish or #r.output ~= #expected.output) then
      error(("seed %d: request %d gives %d tokens and finish %s; alone %d and %s"):format(seed, i, #r.output, r.finish,
        #expected.output, expected.finish))
    end
    local equal, at = same(r.output, expected.output, #r.output)
    if not equal then
      error(("seed %d (%s): request %d differs from itself alone at token %d"):format(seed, family, i, at))
    end
    preempted, reused, guessed, accepted = preempted + r.preempted, reused + r.reused, guessed + r.drafted,
      accepted + r.accepted
  end
  lone:close()
  local kv = q.memory().kv
  if kv.bytes ~= 0 then error(("seed %d: %d bytes of KV memory are left"):format(seed, kv.bytes)) end
  return { steps = stats.steps, preempted = preempted, reused = reused, cancelled = cancelled, guessed = guessed,
    accepted = accepted }
end

return cases
