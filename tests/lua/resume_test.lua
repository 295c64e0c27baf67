-- A resumed run has to have everything as the stopped one had, except a list of settings. The base weights count by
-- their values, not by how they are held or where they lie.
local q = require "qeng"
local resume = require "qeng.train.resume"
local scratch = require "scratch"
q.device { threads = 1 }  -- the shapes are small

local config = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 256, intermediate_size = 256,
  num_hidden_layers = 2,
  num_attention_heads = 4, num_key_value_heads = 4, vocab_size = 320, max_position_embeddings = 64, rms_norm_eps = 1e-6,
  rope_theta = 10000, tie_word_embeddings = true, hidden_act = "silu",
}
local given = q.random_model(config, { seed = 3, std = 0.2 })
given:save(scratch.at "folder")
q.train_bpe({ "the cat sees the dog" }, { vocab = 262, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" },
  out = scratch.at "folder" })
given = q.load(scratch.at "folder")
given:save_gguf(scratch.at "model.gguf", { type = "q6_k" })
local writer = q.ndp.create(scratch.at "data.qubgpu")
for i = 1, 20 do writer:add { 1, 2, i, 4, 5 } end
writer:finish()
local data = q.ndp.open(scratch.at "data.qubgpu")

local function fixed_of(model, more)
  local opt = { model = model, data = data }
  for name, value in pairs(more or {}) do opt[name] = value end
  return (resume.settings(opt, { row_tokens = 16, seed = 0 }, 10))
end
local function weights_of(path, how) return fixed_of(q.load(path, how):lora { rank = 2 })["base weights"] end

-- ---------------------------------------------------------------- the base

for _, path in ipairs { scratch.at "folder", scratch.at "model.gguf" } do
  local copied = weights_of(path, { weights = "copy" })
  assert(copied:find "^26 tensors, digest %x+$", copied)
  assert(weights_of(path, { weights = "map" }) == copied, path .. ": mapped weights are others")
  assert(weights_of(path, { weights = "stream", host_budget = 2e9 }) == copied, path .. ": streamed weights are others")
  assert(weights_of(path) == copied)
end
assert(q.load(scratch.at "model.gguf", { weights = "copy" }).linears[1].weight:dtype() == "q6_k")
assert(weights_of(scratch.at "folder") ~= weights_of(scratch.at "model.gguf"))

-- Each of these is noticed: one number of a small tensor, another name, another order of rows, the setting of a norm.
local base = weights_of(scratch.at "folder")
for name, change in pairs {
  number = function(m) m.linears[3].weight:rows(7, 1):fill(0.5) end,
  bias = function(m) m.linears[1].bias:fill(0.25) end,
} do
  local model = q.load(scratch.at "folder", { writable = true })
  change(model)
  model:lora { rank = 2 }
  assert(fixed_of(model)["base weights"] ~= base, name .. " is not seen")
end

-- Of a large tensor some rows are read, the first and the last among them. It takes the time of some rows.
local large = q.zeros({ 40000, 64 }, "f32")
local hash = large:hash(16)
large:rows(39999, 1):fill(1)
assert(large:hash(16) ~= hash)
large:rows(39999, 1):fill(0)
large:rows(1, 1):fill(1)
assert(large:hash(16) == hash and large:hash(40000) ~= q.zeros({ 40000, 64 }, "f32"):hash(40000))
assert(q.zeros({ 3, 64 }, "f32"):hash(16) == q.zeros({ 3, 64 }, "f32"):hash())

-- What is trained is in the checkpoint. Its values change, so they are not compared.
local full = q.load(scratch.at "folder", { writable = true }):full()
local before = fixed_of(full)["base weights"]
full.linears[1].weight:fill(1)
assert(before == "0 tensors, digest 000000000000" and fixed_of(full)["base weights"] == before)

-- ---------------------------------------------------------------- settings

-- An unknown option has to stay the same; one of the list may change. The adapter counts as it is.
local adapted = q.load(scratch.at "folder"):lora { rank = 2, targets = { "q_proj" } }
local fixed, course = resume.settings({ model = adapted, data = data, settings = { novelty = 3, alpha = 0, threads = 2,
  out = "x", device = "cpu" }, lr = 1e-3, weights = { [3] = 1, [1] = 2 },
  on_step = print, beta2 = 0.9 }, { clip = 1, long = "auto" }, 7)
assert(fixed.novelty == 3 and fixed.alpha == 4 and fixed.targets == "q_proj" and fixed.rank == 2 and
  fixed.beta2 == 0.9 and fixed.long == "auto")
assert(fixed["weights of sources.1"] == 2 and fixed["weights of sources.3"] == 1 and
  fixed["config.rope.theta"] == 10000 and fixed.mode == "lora")
assert(course.threads == 2 and course.lr == 1e-3 and course.clip == 1 and course.steps == 7 and course.device == "cpu")
for _, name in ipairs { "out", "on_step", "model", "threads" } do assert(fixed[name] == nil, name) end
for _, name in ipairs { "out", "on_step", "novelty", "alpha" } do assert(course[name] == nil, name) end

-- Ranks of single layers, the magnitudes of DoRA and noise on the embeddings count too.
adapted = q.load(scratch.at "folder"):lora { rank = 2, ranks = { down_proj = 4 }, dora = true }
adapted.neftune = 5
fixed = fixed_of(adapted)
assert(fixed["ranks.1"] == "down_proj,4" and fixed.dora == true and fixed.neftune == 5 and
  fixed["base weights"] == base)

-- A setting that is off equals one that is not known. A setting that is on does not.
assert(#resume.differences({ a = 0, b = false, c = "" }, {}) == 0)
assert(table.concat(resume.differences({ a = 0, c = 1, e = 2 }, { a = 1, d = true, e = 2 }), " ") == "a c d")

-- Ranks of a job have the same, except where each computes.
local function agree(first, own, others)
  local list = {}
  local team = { size = 2, texts = function(_, text) list[#list + 1] = text return list end }
  resume.agree(team, first)
  resume.agree(team, own, others)
end
agree({ lr = 1, data = "a", threads = 1, zero = 0 }, { lr = 1, data = "b", threads = 2 })
scratch.refused("start all ranks with the same: rank 1 has data 20 records (rank 0: not given), lr 0.5 (rank 0: 1)",
  agree, { lr = 1, data = "a" }, { lr = 0.5, data = "a" }, { data = "20 records" })

-- A whole run is refused by name before anything changes, also for settings of one's own recipe.
local function train(more)
  local model = q.load(scratch.at "folder"):lora(more.lora or { rank = 2, seed = 1 })
  local opt = { model = model, data = data, out = scratch.at "run", steps = 3, row_tokens = 16, save_every = 1,
    resume = true, settings = more.settings }
  for name, value in pairs(more.opt or {}) do opt[name] = value end
  local ok, err = q.try(q.train, opt)
  return not ok and err.message, model
end
assert(not train { settings = { mine = "x" } })
for pattern, more in pairs {
  ["has alpha 4, this one 8; give the same"] = { lora = { rank = 2, alpha = 8 } },
  ["has rank 2, this one 4"] = { lora = { rank = 4 } },
  ["has mine x, this one y"] = { settings = { mine = "y" } },
  ["has mine x, this one none"] = {},
  ["has beta2 none, this one 0.9"] = { settings = { mine = "x" }, opt = { beta2 = 0.9 } },
  ["has rows 1, this one 2"] = { settings = { mine = "x" }, opt = { rows = 2 } },
} do
  local message, model = train(more)
  assert(message and message:find(pattern, 1, true), ("%s: %s"):format(pattern, tostring(message)))
  for _, parameter in ipairs(model:trainable()) do
    assert(not parameter.name:find "lora_B" or parameter.tensor:hash() == q.zeros(parameter.tensor:shape()):hash(),
      "a refused checkpoint was loaded")
  end
end
assert(not train { settings = { mine = "x" }, opt = { steps = 5, lr = 1e-3 } })
print "resume: ok"
