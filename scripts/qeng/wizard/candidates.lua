-- Models that may be trained: those that are on this machine, and published ones of several sizes, each with a plan of
-- whether it fits. A plan of a published one needs no network: its config.json is written out here.

local advise = require "qeng.train.advise"
local demo = require "qeng.train.demo"
local hub = require "qeng.hub"
local make_plan = require "qeng.plan"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local candidates = {}

local function qwen3(hidden, layers, heads, ffn, tied)
  return {
    architectures = q.json.array { "Qwen3ForCausalLM" }, model_type = "qwen3", hidden_size = hidden,
    num_hidden_layers = layers, num_attention_heads = heads, num_key_value_heads = 8, head_dim = 128,
    intermediate_size = ffn, vocab_size = 151936, hidden_act = "silu", tie_word_embeddings = tied,
    max_position_embeddings = 40960, rms_norm_eps = 1e-6, rope_theta = 1e6, torch_dtype = "bfloat16",
  }
end

local published = {
  { name = "Qwen/Qwen3-0.6B", config = qwen3(1024, 28, 16, 3072, true) },
  { name = "Qwen/Qwen3-1.7B", config = qwen3(2048, 28, 16, 6144, true) },
  { name = "Qwen/Qwen3-4B", config = qwen3(2560, 36, 32, 9728, true) },
  { name = "Qwen/Qwen3-8B", config = qwen3(4096, 36, 32, 12288, false) },
  { name = "Qwen/Qwen3-14B", config = qwen3(5120, 40, 40, 17408, false) },
}

-- The path of a model that was named: the built-in one for "tiny", unless a file or folder is called so.
function candidates.path(name)
  if name == "tiny" and not q.fs.kind(name) then return demo.model() end
  return name
end

-- What training adapters of a model needs. model: a path, a name on the hub or a config.
function candidates.plan(model, opt)
  return make_plan { model = model, mode = opt.mode or "lora", dtype = opt.dtype, eval = true,
    row_tokens = opt.row_tokens > 0 and opt.row_tokens or 512, rank = opt.rank > 0 and opt.rank or 16 }
end

-- The bytes that may be taken, nil where that is unknown, and whose they are.
function candidates.room(opt)
  local room, whose = advise.available(advise.device(opt.device))
  if opt.device_budget then room, whose = math.min(room or math.huge, opt.device_budget), "the device's budget" end
  return room, whose
end

-- Whether it fits into the memory that is free here, and a sentence of that.
function candidates.fits(plan, opt)
  local room, whose = candidates.room(opt)
  local needs = progress.bytes(plan.total)
  if not room then return true, "needs " .. needs end
  local fits = plan.total <= 0.9 * room
  return fits, ("needs %s, %s has %s%s"):format(needs, whose, progress.bytes(room), fits and "" or ": does not fit")
end

-- Names on the hub whose weights are on this machine.
local function fetched()
  local handle, names = q.try(q.hub.open), {}
  for _, entry in ipairs(handle and q.try(q.fs.list, handle:settings().cache) or {}) do
    local name = entry:match "^models%-%-(.+)$"
    name = name and name:gsub("%-%-", "/")
    local found = name and hub.parse(name) and q.try(handle.cached, handle, "model", name, "main")
    local config = found and found.folder .. "/config.json"
    if config and q.fs.kind(config) == "file" and q.fs.glob(found.folder .. "/*.safetensors")[1] then
      names[#names + 1] = { name = name, path = found.folder, here = true }
    end
  end
  return names
end

-- {name =, path = or config =, here =, plan =, fits =, sentence =}..., those that cannot be planned left out. all: also
-- published ones that are not here.
function candidates.list(opt, all)
  local list, speak, seen = fetched(), progress.new(), {}
  table.insert(list, 1, { name = "tiny", path = candidates.path "tiny", here = true })
  for _, one in ipairs(list) do seen[one.name] = true end
  for _, one in ipairs(all and published or {}) do
    if not seen[one.name] then list[#list + 1] = { name = one.name, config = one.config } end
  end
  local planned, too_large = {}, false
  for _, one in ipairs(list) do
    if one.here or not too_large then  -- the published ones go by size
      speak:line("planning " .. one.name)
      one.plan = q.try(candidates.plan, one.path or one.config, opt)
      if one.plan then
        one.fits, one.sentence = candidates.fits(one.plan, opt)
        too_large = too_large or not one.here and not one.fits
        planned[#planned + 1] = one
      end
    end
  end
  speak:finish()
  return planned
end

-- How long so many tokens take at least, by the plan of a step at this machine's limits; nil where these are unknown.
function candidates.seconds(plan, tokens)
  return plan.step.seconds > 0 and plan.step.seconds * tokens / plan.step.tokens or nil
end

return candidates
