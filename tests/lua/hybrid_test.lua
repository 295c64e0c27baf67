-- Models of gated delta nets and gated attention (Qwen3.5, its mixtures, Qwen3-Next): settings and what is refused,
-- documents in one row, what a folder has beside the model that is run, training, requests in company. (GGUF files:
-- hybrid_gguf_test.lua; figures of transformers, PEFT and llama.cpp: models_test.lua.)
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"

local cases = require "engine_cases"
local hybrid = require "hybrid_model"
local last_logits = require "last_logits"
local scratch = require "scratch"
local at, refused, said = scratch.at, scratch.refused, scratch.said
local distance = last_logits.distance

local values, fresh, kinds, mixture, next_ = hybrid.values, hybrid.fresh, hybrid.kinds, hybrid.mixture, hybrid.next_
local tokens = hybrid.tokens

-- ---------------------------------------------------------------- settings

local c = fresh().config
assert(c.rotary == 8 and c.plus_one and c.delta.channels == 2 * 32 + 64 and c.mrope[1] == 2)
local function kinds_of(more)
  local list = {}
  for i, attends in ipairs(fresh(more).config.attends) do list[i] = attends and "a" or "d" end
  return table.concat(list)
end
assert(kinds_of() == "ddda" and kinds_of { full_attention_interval = 2 } == "dada")
assert(kinds_of { layer_types = q.json.array { "full_attention", "linear_attention", "linear_attention",
  "full_attention" } } == "adda")
assert(fresh { rope_parameters = q.json.null }.config.rotary == 8, "a quarter of each head is turned by default")
fresh { output_gate_type = "swish", attn_output_gate = true, mamba_ssm_dtype = "float32", mtp_num_hidden_layers = 1,
  mtp_use_dedicated_embeddings = false, mlp_only_layers = q.json.array {} }

for text, more in pairs {
  ["output_gate_type is sigmoid; only silu (swish) is supported"] = { output_gate_type = "sigmoid" },
  ["attn_output_gate = false changes the mathematics"] = { attn_output_gate = false },
  ["mamba_ssm_dtype = bfloat16 changes the mathematics"] = { mamba_ssm_dtype = "bfloat16" },
  ["linear_num_value_heads 3 of linear_num_key_heads 2"] = { linear_num_value_heads = 3 },
  ["linear_key_head_dim is 24; multiples of 16"] = { linear_key_head_dim = 24 },
  ["linear_conv_kernel_dim 9"] = { linear_conv_kernel_dim = 9 },
  ["layer_types has 1 entries, expected one for each of 4"] = { layer_types = q.json.array { "full_attention" } },
  ["layer_types[1] is sliding_attention; full_attention and linear_attention"] = { layer_types = q.json.array {
    "full_attention", "sliding_attention", "full_attention", "full_attention" } },
  ["mlp_only_layers lists 1 layers"] = { mlp_only_layers = q.json.array { 0 } },
  ["unknown key hc_count"] = { hc_count = 4 },
} do
  refused(text, fresh, more)
end
refused("unknown key norm_topk_prob", fresh, { norm_topk_prob = true })
refused("norm_topk_prob = false changes", fresh, (function()
  local more = { norm_topk_prob = false }
  for key, value in pairs(mixture) do more[key] = value end
  return more
end)())
for _, name in ipairs { "Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM" } do
  refused(name .. " needs sparse attention, hyper-connections and a table of n-grams, which is not supported", fresh,
    { architectures = q.json.array { name }, model_type = "qwen4_exp" })
end

-- A new model's heads remember for different times.
local new = q.random_model(values(), { seed = 1 })
for _, parameter in ipairs(new.parameters) do
  if parameter.name:find "A_log" then
    for _, log in ipairs(parameter.tensor:table()) do assert(log > math.log(0.01) and log < math.log(16)) end
  end
  if parameter.name:find "dt_bias" then assert(parameter.tensor:table()[1] == 1) end
end

-- ---------------------------------------------------------------- packed rows

local function document(length, seed)
  local ids, mask = {}, {}
  for i = 1, length do ids[i], mask[i] = (7 * i * i + 3 * i * seed + seed) % 40, 1 end
  return { tokens = ids, mask = mask }
end

-- fn(...) with delta nets that know no documents. So packed rows leak in transformers 5.2 to 5.8, which reset positions
-- and attention at each document, and neither the convolution nor the state.
local function leaking(rows, fn, ...)
  local convolve, rule, row = q.causal_conv, q.gated_delta, q.tensor({ 0, rows }, "i32")
  q.causal_conv = function(x, w, bias) return convolve(x, w, bias, row) end
  q.gated_delta = function(x, g, beta, _, how) return rule(x, g, beta, row, how) end
  local results = { pcall(fn, ...) }
  q.causal_conv, q.gated_delta = convolve, rule
  return unpack(results)
end

local function gradients(model, packs)
  for _, parameter in ipairs(model.parameters) do
    if parameter.tensor:grad() then parameter.tensor:grad():fill(0) end
  end
  for _, each in ipairs(packs) do
    each.scale:fill(1 / 100)
    model:loss(each):backward()
  end
  local found = {}
  for name, gradient in pairs(model:gradients()) do found[name] = gradient:clone() end
  return found
end

local function norm(tensor) return math.sqrt((q.quant.squared_error(q.zeros(tensor:shape()), tensor))) end

-- Products of other numbers of rows round otherwise, and norms of small numbers make more of that.
local most, most_of_gradients = 3e-5, 3e-4
local leak = math.huge  -- by how much documents are off at the least
for kind, more in pairs(kinds) do
  local model, documents, singles = fresh(more, { weights = hybrid.slow }):full(), {}, {}
  for i, length in ipairs { 1, 3, 64, 65, 2, 130, 63 } do
    documents[i] = document(length, i)
    singles[i] = q.pack { documents[i] }
  end
  local packed, first = q.pack(documents), 0
  local together = q.no_grad(model.packed_logits, model, packed)
  local ok, leaked = leaking(packed.tokens:shape()[1], q.no_grad, model.packed_logits, model, packed)
  assert(ok, leaked)
  for i, each in ipairs(singles) do
    local alone = q.no_grad(model.packed_logits, model, each)
    local function off(of)
      return math.sqrt((q.quant.squared_error(of:rows(first, #documents[i].tokens), alone))) / norm(alone)
    end
    assert(off(together) < most, ("%s: document %d is off by %g in a packed row"):format(kind, i, off(together)))
    leak = math.min(leak, i > 1 and off(leaked) or leak)
    first = first + #documents[i].tokens
  end
  local whole, parts = gradients(model, { packed }), gradients(model, singles)
  for name, gradient in pairs(whole) do
    local off = math.sqrt((q.quant.squared_error(parts[name], gradient))) / math.max(1e-15, norm(gradient))
    assert(off < most_of_gradients, ("%s: the gradient of %s is off by %g in a packed row"):format(kind, name, off))
  end
  -- Of as many rows, products have the same bits: then a document's depend on no other one.
  local function among(seed)
    local list, row = { document(70, seed), document(90, 1), document(50, seed) }, 70
    for _, i in ipairs { 1, 3 } do
      for k = 1, #list[i].mask do list[i].mask[k] = 0 end
    end
    local pack = q.pack(list)
    return q.no_grad(model.packed_logits, model, pack):rows(row, 90):clone():hash(), gradients(model, { pack })
  end
  local bits, own = among(2)
  local other_bits, others = among(5)
  assert(bits == other_bits, kind .. ": a document has other bits among other documents")
  for name, gradient in pairs(own) do
    assert(gradient:hash() == others[name]:hash(), ("%s: so has the gradient of %s"):format(kind, name))
  end
  model.recompute = true
  for name, gradient in pairs(gradients(model, { packed })) do
    assert(gradient:hash() == whole[name]:hash(), name .. ": a recomputed gradient has other bits")
  end
end
assert(leak > 0.1, ("the leak of transformers 5.2 to 5.8 moves logits by %g only: this test would not see it"):format(
  leak))

-- ---------------------------------------------------------------- folders of models of images

-- Adds a tensor of 5 dimensions to a file, as the filters of video are, and one of a type that is not computed with.
local function add_foreign(path)
  local text = q.fs.read(path)
  local length = 0
  for i = 8, 1, -1 do length = length * 256 + text:byte(i) end
  local header, data = q.json.decode(text:sub(9, 8 + length)), text:sub(9 + length)
  local foreign = { { "model.visual.filters", "BF16", { 2, 3, 1, 2, 2 }, 48 }, { "mtp.flags", "BOOL", { 3 }, 3 } }
  for _, each in ipairs(foreign) do
    header[each[1]] = {
      dtype = each[2], shape = q.json.array(each[3]), data_offsets = q.json.array { #data, #data + each[4] },
    }
    data = data .. ("\1"):rep(each[4])
  end
  local head, size = q.json.encode(header), {}
  head = head .. (" "):rep(-#head % 8)
  for i = 1, 8 do size[i] = string.char(math.floor(#head / 256 ^ (i - 1)) % 256) end
  q.fs.write(path, table.concat(size) .. head .. data)
end

-- A folder as on the hub: text, images and a head that drafts, A_log and norms in f32, experts as transformers has
-- them.
local function wrapped(model, more)
  local tensors = { { "model.visual.patch_embed.proj.weight", q.randn({ 4, 6 }, { seed = 3, dtype = "bf16" }) } }
  local parameters = { unpack(model:attach_mtp({ seed = 4 }).parameters) }
  for _, parameter in ipairs(model.parameters) do parameters[#parameters + 1] = parameter end
  for _, parameter in ipairs(parameters) do
    local name, tensor = parameter.name:gsub("^model%.", "model.language_model."), parameter.tensor
    local half = name:match "^(.*%.experts%.)gate_proj%.weight$"
    if half then
      local up
      for _, other in ipairs(parameters) do
        if other.name == parameter.name:gsub("gate_proj", "up_proj") then up = other.tensor end
      end
      tensors[#tensors + 1] = { half .. "gate_up_proj", q.no_grad(q.concat, { tensor, up }, 2) }
    elseif not name:find "%.experts%.up_proj" then
      tensors[#tensors + 1] = { name:gsub("(%.experts%.down_proj)%.weight$", "%1"), tensor }
    end
  end
  local inner = values(more)
  inner.architectures, inner.mtp_num_hidden_layers = nil, 1
  local outer = {
    architectures = q.json.array { model.arch.hf:gsub("ForCausalLM", "ForConditionalGeneration"), nil },
    model_type = model.arch.model_type:gsub("_text$", ""), text_config = inner, image_token_id = 38,
    vision_config = { depth = 1, initializer_range = 0.02 }, tie_word_embeddings = false,
  }
  q.fs.remove(at "wrapped")
  q.fs.mkdir(at "wrapped")
  q.safetensors.save(at "wrapped/model.safetensors", tensors)
  add_foreign(at "wrapped/model.safetensors")
  q.fs.write(at "wrapped/config.json", q.json.encode(outer))
  q.fs.write(at "wrapped/preprocessor_config.json", "{}")
  return tensors
end

for kind, more in pairs { dense = {}, mixture = mixture } do
  local model = fresh(more)
  local tensors, beside = wrapped(model, more), {}
  for _, each in ipairs(tensors) do
    if not each[1]:find "language_model" and each[1] ~= "lm_head.weight" then beside[#beside + 1] = each end
  end
  local text, loaded = said(q.load, at "wrapped")
  assert(text:find(("sees no images; %d tensors are not run (model.visual, mtp), and saved as they are"):format(
    #beside + 2), 1, true), text)
  local expected = last_logits.of(model, tokens)
  assert(distance(expected, last_logits.of(loaded, tokens)) == 0, kind .. ": the text part is another model")
  loaded:lora { rank = 2 }
  for i, parameter in ipairs(loaded.adapter.parameters) do
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.2, seed = 5, subsequence = i }))
  end
  local changed = last_logits.of(loaded, tokens)
  loaded:merge():save(at "merged")
  -- The same names, what is not run bit for bit, and the wrapper's config.
  local before, after = { "model.visual.filters", "mtp.flags" }, q.safetensors.open(at "merged/model.safetensors")
  for _, each in ipairs(tensors) do before[#before + 1] = each[1] end
  local names = after:names()
  table.sort(before)
  table.sort(names)
  assert(table.concat(before, "\n") == table.concat(names, "\n"), kind .. ": other names are saved")
  for _, each in ipairs(beside) do
    local own = after:tensor(each[1])
    assert(own:dtype() == each[2]:dtype() and own:hash() == each[2]:hash(), each[1])
  end
  for _, name in ipairs { "model.visual.filters", "mtp.flags" } do
    local was, is = q.safetensors.open(at "wrapped/model.safetensors"):info(name), after:info(name)
    assert(q.json.encode(was) == q.json.encode(is), name)
  end
  assert(q.fs.read(at "merged/model.safetensors"):find(("\1"):rep(48), 1, true), "filters have other bytes")
  local config, original = q.json.decode(q.fs.read(at "merged/config.json")), q.json.decode(
    q.fs.read(at "wrapped/config.json"))
  assert(q.json.encode(config) == q.json.encode(original), kind .. ": another config.json is saved")
  assert(q.fs.read(at "merged/preprocessor_config.json") == "{}")
  local off = distance(changed, last_logits.of(q.load(at "merged"), tokens))
  assert(off < 1e-5, ("%s: the merged folder is off by %g"):format(kind, off))
  -- In bf16 what remembers stays f32.
  local half = q.load(at "wrapped", { dtype = "bf16" })
  half:save(at "half")
  after = q.safetensors.open(at "half/model.safetensors")
  local prefix = "model.language_model.layers.0.linear_attn."
  assert(after:info(prefix .. "A_log").dtype == "f32" and after:info(prefix .. "out_proj.weight").dtype == "bf16")
  assert(after:tensor(prefix .. "A_log"):hash() == model.parameters[kind == "dense" and 9 or 9].tensor:hash())
  -- And a GGUF file of the folder is that of the model, to the bit, with the head that drafts.
  local export, types = require "qeng.gguf.export", require "qeng.gguf.types"
  local said_then, source = said(export.open, at "wrapped")
  assert(said_then:find("3 tensors are not run (model.visual, mtp), and not written", 1, true), said_then)
  export.write(at "folder.gguf", source, types.plan("f32", "", source.shape, false))
  local _, whole = said(q.load, at "wrapped")
  whole:attach_mtp()
  whole:save_gguf(at "loaded.gguf", { type = "f32" })
  assert(q.fs.read(at "folder.gguf") == q.fs.read(at "loaded.gguf"), kind .. ": the folder gives another GGUF file")
  local _, read = said(q.load, at "folder.gguf")
  assert(distance(expected, last_logits.of(read, tokens)) < 1e-5)
end

-- A text model's heads that draft are kept too. Without them the config does not say that they are there.
do
  local model = fresh { mtp_num_hidden_layers = 1 }
  local text = said(model.save, model, at "text")
  assert(text:find("mtp_num_hidden_layers", 1, true), text)
  assert(q.json.decode(q.fs.read(at "text/config.json")).mtp_num_hidden_layers == 0)
  local stored, tensors = q.safetensors.open(at "text/model.safetensors"), { { "mtp.norm.weight", q.zeros { 32 } } }
  for _, name in ipairs(stored:names()) do tensors[#tensors + 1] = { name, stored:tensor(name):clone() } end
  stored:close()
  local settings = q.json.decode(q.fs.read(at "text/config.json"))
  settings.mtp_num_hidden_layers = 1
  q.fs.mkdir(at "drafting")
  q.safetensors.save(at "drafting/model.safetensors", tensors)
  q.fs.write(at "drafting/config.json", q.json.encode(settings))
  local _, loaded = said(q.load, at "drafting")
  loaded:save(at "again")
  assert(q.safetensors.open(at "again/model.safetensors"):info "mtp.norm.weight")
  assert(q.json.decode(q.fs.read(at "again/config.json")).mtp_num_hidden_layers == 1)
end

-- ---------------------------------------------------------------- training

-- Captured steps have the bits of others, and adapters are of what the recipes expect.
for kind, more in pairs(kinds) do
  local packed = q.pack { document(70, 1), document(20, 2) }
  local function losses(captured)
    local model, list = fresh(more):lora { rank = 2 }, {}
    local adamw = q.adamw(model:trainable(), { lr = 1e-2 })
    local function pass()
      local loss = model:loss(packed)
      loss:backward()
      return loss
    end
    local program, kept
    if captured then program, kept = q.capture(pass) end
    for i = 1, 3 do
      if program then program:run() end
      list[i] = (kept or pass()):item()
      adamw:step()
    end
    return table.concat(list, " ")
  end
  assert(losses(false) == losses(true), kind .. ": a captured step computes something else")
  local roles = {}
  for _, layer in ipairs(fresh(more):lora({ rank = 2 }).linears) do
    if layer.lora then roles[layer.role] = true end
  end
  assert(roles.q_proj and roles.out_proj and roles[kind == "next" and "in_proj_qkvz" or "in_proj_z"]
    and not roles.in_proj_a and not roles.gate and not roles.shared_expert_gate)
  assert((roles.gate_proj ~= nil) == (kind ~= "next"))
end

-- Training in bf16 goes where that in f32 does, beside parameters that stay f32. (PyTorch's gradients of such a random
-- model are off by as much.)
do
  q.random_model(values(), { seed = 1, std = 0.1 }):save(at "plain")
  local packed, found = q.pack { document(70, 1), document(20, 2) }, {}
  for _, dtype in ipairs { "f32", "bf16" } do
    found[dtype] = gradients(q.load(at "plain", { dtype = dtype, writable = true }):full(), { packed })
  end
  local off, all = 0, 0
  for name, gradient in pairs(found.f32) do
    off = off + q.quant.squared_error(gradient, found.bf16[name]:to "f32")
    all = all + norm(gradient) ^ 2
  end
  assert(math.sqrt(off / all) < 0.25, ("gradients under bf16 are off by %g"):format(math.sqrt(off / all)))
end

-- ---------------------------------------------------------------- requests

-- Each gets what it gets alone, whatever the company, also where value heads are in GGUF's order.
do
  local reused, wrong = 0, 0
  for seed, more in ipairs { {}, mixture, next_, {} } do
    local own = { vocab_size = 320 }
    for key, value in pairs(more) do own[key] = value end
    local model = fresh(own, { weights = hybrid.slow })
    if seed == 4 then
      model:save_gguf(at "model.gguf", { type = "f32" })
      model = q.load(at "model.gguf")
    end
    local found = cases.schedule(7 * seed, { model = model, count = 24, pages = 14, page_tokens = 64, shared = 70 })
    reused, wrong = reused + found.reused, wrong + found.guessed - found.accepted
  end
  assert(reused > 0 and wrong > 0, ("%d tokens reused, %d guesses wrong"):format(reused, wrong))
end

print(("hybrid: gated delta nets load, train, adapt, and are saved with what lies beside them; with the leak of packed "
  .. "rows that transformers 5.2 to 5.8 have, logits would be off by %.0f %% at the least"):format(100 * leak))
