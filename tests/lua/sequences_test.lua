-- A user's model file with a recurrent state. The batch engine makes of it what a forward pass does (shared beginnings,
-- guesses, sequences that give way, adapters), and each request gives what it gives alone. A model file is run only
-- where it is named.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local cases = require "engine_cases"
local last_logits = require "last_logits"
local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local here = arg[0]:match "^(.*/)" or "./"
local values = {
  architectures = q.json.array { "EmaForCausalLM" }, model_type = "ema", hidden_size = 64, intermediate_size = 96,
  num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 320,
  max_position_embeddings = 256,
}
local model = q.random_model(values, { seed = 1, std = 0.2, model_file = here .. "ema_model.lua" })

-- ---- the engine's text is that of forward passes
local ids = {}
for i = 1, 45 do ids[i] = (i * 7 + i * i) % 23 end
local function continued(count)
  local list, given = { unpack(ids) }, {}
  for i = 1, count do
    local best, row = 1, last_logits.of(model, list)
    for k, value in ipairs(row) do if value > row[best] then best = k end end
    given[i], list[#list + 1] = best - 1, best - 1
  end
  return table.concat(given, " ")
end
local expected = continued(40)
for _, how in ipairs { {}, { chunk = 7 }, { chunk = 1, page_tokens = 4 }, { draft = model } } do
  how.max_batch = 3
  local engine = model:engine(how)
  local function submit(more)
    local r = engine:submit { ids = ids, max_tokens = 40, temperature = 0, stop_ids = {}, lookup = more }
    engine:finish()
    assert(table.concat(r.output, " ") == expected, "the engine continues with other tokens than forward passes")
    return r
  end
  submit()
  local again = submit()
  assert(again.reused > 0 and again.reused % (how.page_tokens or 16) == 0, "an equal beginning was computed again")
  local guessed = submit(6)
  assert(how.draft or guessed.drafted > 0, "nothing was guessed")
  engine:close()
end

-- ---- random schedules: each request gets what it gets alone
local reused, preempted, wrong = 0, 0, 0
for seed = 1, 8 do
  local found = cases.schedule(seed, { model = model, count = 24, pages = 14 })
  reused, preempted, wrong = reused + found.reused, preempted + found.preempted, wrong + found.guessed - found.accepted
end
assert(reused > 0 and preempted > 0 and wrong > 0, "no schedule shares, gives way and goes back")

-- ---- memory is known before it is taken: two layers of keys and values, two of averages
local engine = model:engine { kv = "f16", pages = 8, page_tokens = 4 }
assert(engine:stats().kv_capacity == 8 * 2 * (2 * 4 * 2 * 16 * 2 + 64 * 4))
engine:close()

-- ---- adapters go where the file says
model:lora { rank = 2 }
assert(table.concat(model.adapter.targets, " ") == "v_proj o_proj" and #model.adapter.parameters == 2 * 8)

-- ---- a folder runs no code of its own unless it is named
model:merge():save(at "folder")
q.fs.copy(here .. "ema_model.lua", at "folder/model.lua")
refused("architecture EmaForCausalLM is not known", q.load, at "folder")
local loaded = q.load(at "folder", { model_file = at "folder/model.lua" })
assert(last_logits.distance(last_logits.of(model, ids), last_logits.of(loaded, ids)) == 0)
refused("EmaForCausalLM has no words in the format", function() loaded:save_gguf(at "x.gguf") end)
refused("is of architecture LlamaForCausalLM, and the model file is of EmaForCausalLM", q.random_model,
  { architectures = { "LlamaForCausalLM" } }, { model_file = here .. "ema_model.lua" })
q.fs.write(at "odd.lua", "return { hf = 'X' }")
refused("returns no model", q.load, at "folder", { model_file = at "odd.lua" })
q.fs.write(at "wrong.lua", "return {")
refused("wrong.lua", q.load, at "folder", { model_file = at "wrong.lua" })
print(("sequences: a state beside keys and values; %d tokens reused, %d gave way, %d guesses were wrong"):format(reused,
  preempted, wrong))
