-- Models of gated delta nets as GGUF files: value heads in their order, both ways, adapters on them, files as other
-- writers have them, and what is refused. (llama.cpp's figures: models_test.lua, tests/peers/models_check.py.)
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local hybrid = require "hybrid_model"
local last_logits = require "last_logits"
local scratch = require "scratch"
local at, refused, said = scratch.at, scratch.refused, scratch.said
local fresh, kinds, mixture, next_, tokens = hybrid.fresh, hybrid.kinds, hybrid.mixture, hybrid.next_, hybrid.tokens
local distance = last_logits.distance

local function same_weights(one, other, what)
  assert(#one.parameters == #other.parameters, what)
  for i, parameter in ipairs(one.parameters) do
    local own = other.parameters[i]
    local worst = q.no_grad(function() return (parameter.tensor - own.tensor):abs():max():item() end)
    -- ssm_a is -exp(A_log), rounded; norms are kept with one added.
    local most = (parameter.name:find "A_log" or parameter.name:find "norm%.weight$") and 3e-7 or 0
    assert(parameter.name == own.name and worst <= most, ("%s: %s is off by %g"):format(what, own.name, worst))
  end
end

for kind, more in pairs(kinds) do
  for _, count in ipairs { 2, 4, 6 } do
    local own = { linear_num_value_heads = count }
    for key, value in pairs(more) do own[key] = value end
    local model = fresh(own)
    local expected = last_logits.of(model, tokens)
    model:save_gguf(at "model.gguf", { type = "f32" })
    local again = q.load(at "model.gguf")
    local off = distance(expected, last_logits.of(again, tokens))
    assert(off < 1e-5, ("%s, %d value heads: a GGUF file is off by %g"):format(kind, count, off))
    local heads = again.config.value_heads
    assert((heads ~= nil and heads.tiled.rows) == (kind ~= "next" and count > 2))
    -- Back to a folder, whose weights are those of the first model; and once more to the same file.
    again:save(at "folder")
    same_weights(model, q.load(at "folder"), kind .. ", a folder of a GGUF file")
    again:save_gguf(at "again.gguf", { type = "f32" })
    local file, other = q.gguf.open(at "model.gguf"), q.gguf.open(at "again.gguf")
    for _, name in ipairs(file:names()) do
      local worst = (file:tensor(name) - other:tensor(name)):abs():max():item()
      assert(worst <= 1e-6, ("%s: %s is off by %g in a file of a file"):format(kind, name, worst))
    end
    file:close()
    other:close()

    -- Adapters are of checkpoints, whatever the order of the model that they are put on.
    local targets = kind ~= "dense" and { "out_proj", "q_proj", "gate_proj" } or nil
    model:lora { rank = 2, targets = targets }
    for i, parameter in ipairs(model.adapter.parameters) do
      parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.2, seed = 5, subsequence = i }))
    end
    expected = last_logits.of(model, tokens)
    model:save_adapter(at "adapter")
    model:save_adapter_gguf(at "adapter.gguf")
    for _, path in ipairs { "adapter", "adapter.gguf" } do
      local adapted = q.load(at "model.gguf"):load_adapter(at(path))
      off = distance(expected, last_logits.of(adapted, tokens))
      assert(off < 1e-5, ("%s, %d value heads: %s on a GGUF file is off by %g"):format(kind, count, path, off))
      adapted:save_adapter(at "adapter_again")
      off = distance(expected, last_logits.of(fresh(own):load_adapter(at "adapter_again"), tokens))
      assert(off < 1e-5, ("%s: an adapter that was on a GGUF file is off by %g"):format(kind, off))
      off = distance(expected, last_logits.of(adapted:merge(), tokens))
      assert(off < 1e-5, ("%s: merged into a GGUF file it is off by %g"):format(kind, off))
    end
  end
end

-- Qwen3-Next's fused layer in older files and in newer ones.
do
  local model = fresh(next_)
  local expected = last_logits.of(model, tokens)
  model:save_gguf(at "model.gguf", { type = "f32" })
  local file, tensors, entries = q.gguf.open(at "model.gguf"), {}, {}
  for _, name in ipairs(file:names()) do
    if not name:find "attn_gate" and not name:find "attn_qkv" then
      tensors[#tensors + 1] = { name, file:tensor(name) }
    end
  end
  for i = 0, 2 do
    tensors[#tensors + 1] = { ("blk.%d.ssm_in.weight"):format(i), model.linears[1].weight }
    local name = ("model.layers.%d.linear_attn.in_proj_qkvz"):format(i)
    for _, layer in ipairs(model.linears) do
      if layer.name == name then tensors[#tensors][2] = layer.weight end
    end
  end
  for _, key in ipairs(file:keys()) do
    local value, kind = file:get(key)
    entries[#entries + 1] = { key, kind, value }
  end
  q.gguf.save(at "older.gguf", tensors, entries)
  local older = q.load(at "older.gguf")
  assert(distance(expected, last_logits.of(older, tokens)) < 1e-5, "an older file is another model")
  older:save_gguf(at "again.gguf", { type = "f32" })
  assert(distance(expected, last_logits.of(q.load(at "again.gguf"), tokens)) < 1e-5)
  refused("in_proj_qkv is a part of in_proj_qkvz in checkpoints", function()
    q.load(at "model.gguf"):lora { rank = 2, targets = { "in_proj_qkv" } }
  end)
  -- The fused layer's adapter becomes two, and one again.
  model:lora { rank = 2 }
  for i, parameter in ipairs(model.adapter.parameters) do
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.2, seed = 5, subsequence = i }))
  end
  expected = last_logits.of(model, tokens)
  model:save_adapter_gguf(at "adapter.gguf")
  assert(distance(expected, last_logits.of(fresh(next_):load_adapter(at "adapter.gguf"), tokens)) < 1e-6)
end

-- A mixture's files as other writers have them: gate and up of all experts in one, the shared expert's gate a matrix.
do
  local model = fresh(mixture)
  local expected = last_logits.of(model, tokens)
  model:save_gguf(at "model.gguf", { type = "f32" })
  model:save_gguf(at "blocks.gguf", { type = "q8_0" })
  local of_blocks = last_logits.of(q.load(at "blocks.gguf"), tokens)
  for _, name in ipairs { "model", "blocks" } do
    local file, tensors, entries = q.gguf.open(at(name .. ".gguf")), {}, {}
    for _, stored in ipairs(file:names()) do
      local tensor, block = file:tensor(stored), stored:match "^(blk%.%d+%.)ffn_gate_exps%.weight$"
      local shape = tensor:shape()
      if block then
        local both = q.empty({ shape[1], 2 * shape[2], shape[3] }, tensor:dtype())
        local up = file:tensor(block .. "ffn_up_exps.weight")
        for e = 0, shape[1] - 1 do
          local own = both:rows(e, 1):reshape { 2 * shape[2], shape[3] }
          own:rows(0, shape[2]):copy(tensor:rows(e, 1):reshape { shape[2], shape[3] })
          own:rows(shape[2], shape[2]):copy(up:rows(e, 1):reshape { shape[2], shape[3] })
        end
        tensors[#tensors + 1] = { block .. "ffn_gate_up_exps.weight", both }
      elseif stored:find "ffn_gate_inp_shexp" then
        tensors[#tensors + 1] = { stored, tensor:reshape { 1, shape[1] } }
      elseif not stored:find "ffn_up_exps" then
        tensors[#tensors + 1] = { stored, tensor }
      end
    end
    for _, key in ipairs(file:keys()) do
      local value, kind = file:get(key)
      entries[#entries + 1] = { key, kind, value }
    end
    q.gguf.save(at "fused.gguf", tensors, entries)
    local off = distance(name == "model" and expected or of_blocks, last_logits.of(q.load(at "fused.gguf"), tokens))
    assert(off < (name == "model" and 1e-5 or 1e-6), ("%s with fused experts is off by %g"):format(name, off))
    refused("is gate and up of experts in one", q.load, at "fused.gguf", { weights = "stream" })
  end
end

-- PrismML's files have the columns of ssm_out in the checkpoint's order.
do
  local model = fresh()
  local expected = last_logits.of(model, tokens)
  model:save_gguf(at "model.gguf", { type = "f32" })
  local file, tensors, entries = q.gguf.open(at "model.gguf"), {}, {}
  for _, name in ipairs(file:names()) do
    local index = name:match "^blk%.(%d)%.ssm_out"
    local own = index and ("model.layers.%s.linear_attn.out_proj.weight"):format(index)
    for _, parameter in ipairs(own and model.parameters or {}) do
      if parameter.name == own then own = parameter.tensor end
    end
    tensors[#tensors + 1] = { name, own or file:tensor(name) }
  end
  for _, key in ipairs(file:keys()) do
    local value, kind = file:get(key)
    entries[#entries + 1] = { key, kind, value }
  end
  for _, entry in ipairs {
    { "version", "u32", 1 }, { "transform", "string", "normalized-sylvester-walsh-hadamard" },
    { "axis", "string", "input-last-dimension" }, { "block_size", "u32", 16 }, { "sign_mode", "string", "identity" },
    { "weight_names", "[string]", {} }, { "gdn_v_grouped", "bool", true },
  } do
    entries[#entries + 1] = { "prism.hadamard." .. entry[1], entry[2], entry[3] }
  end
  q.gguf.save(at "prism.gguf", tensors, entries)
  local prism = q.load(at "prism.gguf")
  assert(prism.config.value_heads.tiled.rows and not prism.config.value_heads.tiled.columns)
  assert(distance(expected, last_logits.of(prism, tokens)) < 1e-5, "a file with ssm_out as in checkpoints")
  prism:save_gguf(at "again.gguf", { type = "f32" })
  assert(distance(expected, last_logits.of(q.load(at "again.gguf"), tokens)) < 1e-5, "and a file of it")
end

-- llama.cpp turns pair i by section i % 3 as far as that goes, and a pair that no section has not at all.
for _, case in ipairs {
  { 16, 0.25 }, { 16, 0.5 }, { 16, 1 }, { 32, 1, { 8, 4, 4 }, "6 5 5" }, { 32, 1, { 6, 5, 5 }, "6 5 5" },
  { 32, 0.25, { 2, 1, 1 }, "2 1 1" },
} do
  local model = fresh { head_dim = case[1], rope_parameters = {
    rope_type = "default", rope_theta = 1e4, partial_rotary_factor = case[2],
    mrope_section = case[3] and q.json.array(case[3]), mrope_interleaved = true,
  } }
  model:save_gguf(at "sections.gguf", { type = "f32" })
  local s = q.gguf.open(at "sections.gguf"):get "qwen35.rope.dimension_sections"
  local sections = table.concat(s, " ")
  assert(not case[4] or sections == case[4] .. " 0", sections)
  for i = 0, case[1] * case[2] / 2 - 1 do assert(i < 3 * s[i % 3 + 1], sections) end
end

-- What GGUF has no words for is refused, or said; blocks that draft tokens are left.
refused("gguf: no words for attention_bias", function() fresh { attention_bias = true }:save_gguf(at "x.gguf") end)
refused("gguf: no words for heads of 16 keys and 32 values", function()
  fresh { linear_value_head_dim = 32 }:save_gguf(at "x.gguf")
end)
do
  local order = q.json.array { "full_attention", "linear_attention", "linear_attention", "full_attention" }
  local model = fresh { layer_types = order }
  model:save_gguf(at "order.gguf", { type = "f32" })
  local again = q.load(at "order.gguf")
  assert(distance(last_logits.of(model, tokens), last_logits.of(again, tokens)) < 1e-5)
  assert(table.concat(again.config_values.layer_types, " ") == table.concat(order, " "))
  model = fresh()
  model:save_gguf(at "model.gguf", { type = "f32" })
  local file, tensors, entries = q.gguf.open(at "model.gguf"), {}, { { "qwen35.nextn_predict_layers", "u32", 1 } }
  for _, name in ipairs(file:names()) do tensors[#tensors + 1] = { name, file:tensor(name) } end
  tensors[#tensors + 1] = { "blk.4.nextn.enorm.weight", q.zeros { 32 } }
  for _, key in ipairs(file:keys()) do
    local value, kind = file:get(key)
    entries[#entries + 1] = { key, kind, key == "qwen35.block_count" and 5 or value }
  end
  q.gguf.save(at "drafts.gguf", tensors, entries)
  local text, drafts = said(q.load, at "drafts.gguf")
  assert(text:find("1 tensors of blocks that draft tokens (nextn) are left", 1, true), text)
  assert(distance(last_logits.of(model, tokens), last_logits.of(drafts, tokens)) < 1e-5)
end

print "hybrid models as GGUF files: read and written as llama.cpp has them"
