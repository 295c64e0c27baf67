-- Weights that are stored rotated (prism.hadamard.* of a GGUF file): the file means the same model as the one that is
-- not rotated. So it is in training's forward pass, in the engine, and under adapters that are trained, served and
-- merged. The rotation here is by the definition of H, in float64.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local golden = require "golden"
local scratch = require "scratch"
local q = require "qeng"
local export = require "qeng.gguf.export"
local types = require "qeng.gguf.types"
local at, flat = scratch.at, golden.flat

-- The error of f32 rounding, u = 6e-8. A rotated layer rounds its stored weight, rounds its input log2(block) + 2
-- times, and sums products over up to 256 columns in another order: some 20 u of the norm of the result. Nine layers
-- follow one another in two blocks and a head.
local rounding = 1e-5

local function close(what, got, wanted, limit)
  local _, relative = golden.differences(got, wanted)
  assert(relative <= limit, ("%s differs by %g, expected %g at most"):format(what, relative, limit))
end

-- ---------------------------------------------------------------- rotated files

-- H[i, j] / sqrt(block) = (-1)^(number of ones in i and j) / sqrt(block), by rows.
local function hadamard(block)
  local rows = {}
  for i = 0, block - 1 do
    rows[i] = {}
    for j = 0, block - 1 do
      local both, sign = bit.band(i, j), 1
      while both > 0 do both, sign = bit.rshift(both, 1), bit.band(both, 1) == 1 and -sign or sign end
      rows[i][j] = sign / math.sqrt(block)
    end
  end
  return rows
end

-- Each row w of a weight as H (s * w) by blocks; undo: s * (H w). signs: of a column, or nil.
local function rotate(weight, block, signs, undo)
  local shape, values, result, h = weight:shape(), flat(weight), {}, hadamard(block)
  for start = 0, #values - 1, block do
    local column = start % shape[2]
    local function sign(i) return signs and signs[column + i + 1] or 1 end
    local input = {}
    for j = 0, block - 1 do input[j] = values[start + j + 1] * (undo and 1 or sign(j)) end
    for i = 0, block - 1 do
      local sum, row = 0, h[i]
      for j = 0, block - 1 do sum = sum + row[j] * input[j] end
      result[start + i + 1] = sum * (undo and sign(i) or 1)
    end
  end
  return q.tensor(result, "f32"):reshape(shape)
end

local function random_signs(width)
  local signs, state = {}, 12345 + width
  for i = 1, width do
    state = (state * 1103515245 + 12345) % 2147483648
    signs[i] = state >= 1073741824 and 1 or -1
  end
  return signs
end

-- how: block, signs (by width; nil for the identity), plain (a set of what is not rotated, without "blk.N." and
-- ".weight").
local function is_rotated(tensor, how)
  return #tensor.shape == 2 and not how.plain[tensor.name:match "^blk%.%d+%.(.*)%.weight$" or
    tensor.name:match "^(.*)%.weight$"]
end

-- Adds the metadata to a source. wrong: fields of the metadata that replace those of `how`.
local function say(source, how, wrong)
  local names, widths, values, mode = {}, {}, {}, how.signs and "explicit" or "identity"
  local function add(key, type, value) table.insert(source.metadata, { "prism.hadamard." .. key, type, value }) end
  local inverse = {}
  for _, tensor in ipairs(source.tensors) do
    if is_rotated(tensor, how) then
      local looked_up = tensor.name == "token_embd.weight"
      if looked_up then inverse[1] = tensor.name end
      if not looked_up or source.shape.tied then names[#names + 1] = tensor.name end
    end
  end
  add("version", "u32", 1)
  add("transform", "string", "normalized-sylvester-walsh-hadamard")
  add("axis", "string", "input-last-dimension")
  add("block_size", "u32", wrong and wrong.block or how.block)
  add("sign_mode", "string", mode)
  for width, signs in pairs(wrong and wrong.signs or how.signs or {}) do
    widths[#widths + 1] = width
    for _, sign in ipairs(signs) do values[#values + 1] = sign end
  end
  if how.signs then
    add("sign_widths", "[u32]", widths)
    add("sign_values", "[i32]", values)
  end
  add("weight_names", "[string]", names)
  add("inverse_weight_names", "[string]", wrong and wrong.inverse or inverse)
end

-- Writes the model of file `from` with its matrices as edit(tensor, values) gives them. more(source) adds to it.
local function rewrite(from, to, type, edit, more)
  local source = export.of_gguf(from)
  for _, tensor in ipairs(source.tensors) do
    local read = tensor.read
    if edit then tensor.read = function() return edit(tensor, read()) end end
  end
  if more then more(source) end
  export.write(to, source, types.plan(type, "", source.shape))
  return to
end

-- The same model, rotated.
local function write_rotated(from, to, how, wrong)
  return rewrite(from, to, "f32", function(tensor, weight)
    return is_rotated(tensor, how) and rotate(weight, how.block, how.signs and how.signs[tensor.shape[2]]) or weight
  end, function(source) say(source, how, wrong) end)
end

-- ---------------------------------------------------------------- models

local function values_of(architecture, more)
  local values = {
    architectures = q.json.array { architecture }, hidden_size = 64, intermediate_size = 96, num_hidden_layers = 2,
    num_attention_heads = 4,
    num_key_value_heads = 2, vocab_size = 96, max_position_embeddings = 64, rms_norm_eps = 1e-6, rope_theta = 10000,
    hidden_act = "silu",
  }
  for key, value in pairs(more) do values[key] = value end
  return values
end

local documents = {}
for d = 1, 3 do
  local tokens, mask = {}, {}
  for i = 1, 9 + d do tokens[i], mask[i] = (i * (d + 2) + i * i) % 96, 1 end
  documents[d] = { tokens = tokens, mask = mask }
end
local micro_batch = golden.micro_batch(documents)

-- Greedy tokens by whole forward passes, and by how much each was the best.
local function continue(model, ids, count)
  local all, gaps = { unpack(ids) }, {}
  for n = 1, count do
    local logits, best, second = flat(model:logits(all):rows(#all - 1, 1)), 1, -math.huge
    for i = 2, #logits do
      if logits[i] > logits[best] then
        best, second = i, logits[best]
      elseif logits[i] > second then
        second = logits[i]
      end
    end
    all[#all + 1], gaps[n] = best - 1, logits[best] - second
  end
  return { unpack(all, #ids + 1) }, gaps
end

-- The engine's greedy tokens for each document, all in one batch. The documents take turns with `adapters` (false:
-- none, "own": the model's).
local function serve(model, adapters, count)
  local engine, requests = model:engine { max_batch = 4, pages = 40, chunk = 5 }, {}
  for i = 1, #documents * #adapters do
    local adapter = adapters[(i - 1) % #adapters + 1]
    if adapter == "own" then adapter = nil end
    requests[i] = engine:submit { ids = documents[math.ceil(i / #adapters)].tokens, max_tokens = count, temperature = 0,
      stop_ids = {}, adapter = adapter }
  end
  engine:finish()
  for i, request in ipairs(requests) do requests[i] = request.output end
  assert(engine:stats().used == 0)
  engine:close()
  return requests
end

-- models: one for each adapter, whose forward pass has to agree. Where two logits are closer than `tie`, either token
-- may be taken; of those that rounding makes, in one continuation (which two adapters of the same numbers share).
local function check_served(what, served, models)
  local distinct = {}  -- by the continuation: whether one parts from it
  for i, output in ipairs(served) do
    local wanted, gaps = continue(models.of[(i - 1) % #models.of + 1],
      documents[math.ceil(i / #models.of)].tokens, #output)
    local text = table.concat(wanted, " ")
    distinct[text] = distinct[text] or false
    for n = 1, #wanted do
      if output[n] ~= wanted[n] then
        assert(gaps[n] < models.tie, ("%s, request %d: served %s, expected %s, by %g"):format(
          what, i, table.concat(output, " "), text, gaps[n]))
        distinct[text] = true
        break
      end
    end
  end
  local count, parted = 0, 0
  for _, parts in pairs(distinct) do count, parted = count + 1, parted + (parts and 1 or 0) end
  local allowed = models.tie > 1e-3 and 1 or 0
  assert(parted <= allowed, ("%s: %d of %d continuations part from the forward pass, at ties"):format(
    what, parted, count))
  assert(count > #documents / 2, what .. ": all continuations are the same, which says little")
end

local function signs_of(...)
  local signs = {}
  for _, width in ipairs { ... } do signs[width] = random_signs(width) end
  return signs
end

-- ---------------------------------------------------------------- a rotated file is the model that it was made of

for name, case in pairs {
  ["qwen3, all, explicit signs"] = {
    values = values_of("Qwen3ForCausalLM", { head_dim = 32, tie_word_embeddings = false }),
    how = { block = 32, signs = signs_of(64, 96, 128), plain = {} } },
  ["qwen2, tied, explicit signs"] = { values = values_of("Qwen2ForCausalLM", { tie_word_embeddings = true }),
    how = { block = 16, signs = signs_of(64, 96), plain = {} } },
  ["llama, some layers, no signs"] = {
    values = values_of("LlamaForCausalLM", { tie_word_embeddings = false, attention_bias = true }),
    how = { block = 32, plain = { attn_k = true, ffn_up = true, ffn_down = true, output = true } } },
  ["gemma, tied and scaled, one block a row"] = {
    values = values_of("GemmaForCausalLM", { head_dim = 16, intermediate_size = 64, hidden_act = "gelu_pytorch_tanh" }),
    how = { block = 64, signs = signs_of(64), plain = {} } },
} do
  local how = case.how
  q.random_model(case.values, { seed = 3, std = 0.2 }):save_gguf(at "plain.gguf", { type = "f32" })
  local plain, rotated = q.load(at "plain.gguf"), q.load(write_rotated(at "plain.gguf", at "rotated.gguf", how))
  local stored, meant = flat(rotated.linears[1].weight), flat(plain.linears[1].weight)
  assert(select(2, golden.differences(stored, meant)) > 0.5, name .. ": the stored weights are not rotated")
  local wanted = flat(plain:logits(documents[1].tokens))
  close(name .. ": logits", flat(rotated:logits(documents[1].tokens)), wanted, rounding)
  check_served(name, serve(rotated, { false }, 8), { of = { plain }, tie = 1e-4 })
  close(name .. ": streamed logits",
    flat(q.load(at "rotated.gguf", { weights = "stream" }):logits(documents[1].tokens)), wanted, rounding)

  -- Written again: unrotated, and then a folder too.
  rotated:save_gguf(at "again.gguf", { type = "f32" })
  local again = q.load(at "again.gguf")
  assert(not again.rotations)
  close(name .. ": weights written again", flat(again.linears[1].weight), meant, 1e-6)
  close(name .. ": logits of the file written again", flat(again:logits(documents[1].tokens)), wanted, rounding)
  scratch.refused("save_gguf writes them unrotated", function() rotated:save(at "folder") end)
  again:save(at "folder")
  -- A copy by quantize.lua's way keeps the rotation.
  close(name .. ": logits of a copy",
    flat(q.load(rewrite(at "rotated.gguf", at "copy.gguf", "f32")):logits(documents[1].tokens)), wanted, rounding)

  -- The metadata decide.
  local function off(wrong)
    return select(2, golden.differences(flat(q.load(write_rotated(at "plain.gguf", at "wrong.gguf", how,
      wrong)):logits(documents[1].tokens)), wanted))
  end
  assert(off { block = how.block / 2 } > 0.05, name .. ": half the block changes little")
  if how.signs then
    local flipped = {}
    for width, signs in pairs(how.signs) do flipped[width] = { -signs[1], unpack(signs, 2) } end
    assert(off { signs = flipped } > 0.01, name .. ": a wrong sign changes little")
  end
  if plain.config.tied then
    scratch.refused("for one of the two only", off, { inverse = {} })
  else
    assert(off { inverse = {} } > 0.05, name .. ": an embedding that stays rotated changes little")
  end
end

-- ---------------------------------------------------------------- adapters on a rotated base

-- A file whose matrices are of `type`, rotated; and the equivalent one in f32 that is not.
local function pair(type, how)
  local values = values_of("Qwen3ForCausalLM",
    { hidden_size = 128, intermediate_size = 256, head_dim = 32, tie_word_embeddings = true })
  q.random_model(values, { seed = 5, std = 0.06 }):save_gguf(at "drawn.gguf",
    { type = type, overrides = "token_embd=" .. type })
  local source = export.of_gguf(at "drawn.gguf")
  say(source, how)
  export.write(at(type .. ".gguf"), source, types.plan(type, "token_embd=" .. type, source.shape))
  return at(type .. ".gguf"), rewrite(at "drawn.gguf", at(type .. "-plain.gguf"), "f32", function(tensor, weight)
    return is_rotated(tensor, how) and rotate(weight:to "f32", how.block, how.signs[tensor.shape[2]], true) or weight
  end)
end

local function with_adapter(path, dropout)
  local model = q.load(path):lora { rank = 4, seed = 3, dropout = dropout }
  for i, parameter in ipairs(model:trainable()) do
    if parameter.name:find("lora_B", 1, true) then
      parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.05, seed = 9, subsequence = i }))
    end
  end
  return model
end

-- The loss, and the gradient of each part of the adapter by name, which is then zero again.
local function gradients(model)
  q.seed(11)
  q.rng_step(1)
  local loss, found = model:loss(micro_batch), {}
  loss:backward()
  for _, parameter in ipairs(model:trainable()) do
    found[parameter.name] = flat(parameter.tensor:grad())
    parameter.tensor:grad():fill(0)
  end
  return loss:item(), found
end

local function train(model) return golden.train(model, micro_batch) end

-- tie: the distance of two logits that the engine may exchange. It rounds activations to eight bits for blocks; the
-- forward pass is in f32. Seen: up to 0.029, as codes beside a boundary fall otherwise with each instruction set.
local function adapters(type, tie)
  local how = { block = 128, signs = signs_of(128, 256), plain = {} }
  local rotated_file, plain_file = pair(type, how)
  for _, dropout in ipairs { 0, 0.2 } do
    local rotated, plain = with_adapter(rotated_file, dropout), with_adapter(plain_file, dropout)
    assert(rotated.linears[1].weight:dtype() == type and plain.linears[1].weight:dtype() == "f32")
    local loss, found = gradients(rotated)
    local wanted_loss, wanted = gradients(plain)
    assert(math.abs(loss - wanted_loss) <= rounding * wanted_loss,
      ("%s, dropout %g: the loss is %.8g, expected %.8g"):format(type, dropout, loss, wanted_loss))
    for part, gradient in pairs(wanted) do
      assert(golden.norm(gradient) > 0)
      -- forward and back
      close(("%s, dropout %g: gradient of %s"):format(type, dropout, part), found[part], gradient, 2 * rounding)
    end
    rotated.recompute = true
    local again, recomputed = gradients(rotated)
    assert(again == loss)
    for part, gradient in pairs(recomputed) do close(part, gradient, found[part], rounding) end
  end

  local trained, plain = with_adapter(rotated_file), with_adapter(plain_file)
  local curve, wanted = train(trained), train(plain)
  -- AdamW's first steps divide each gradient by its own size, so that the rounding of the small ones counts fully.
  for step = 1, #curve do
    assert(math.abs(curve[step] - wanted[step]) <= 1e-4 * wanted[step],
      ("%s, step %d: the loss is %.7g, expected %.7g"):format(type, step, curve[step], wanted[step]))
  end
  assert(curve[#curve] < 0.8 * curve[1], ("%s: the loss went from %g to %g"):format(type, curve[1], curve[#curve]))

  trained:save_adapter(at "peft")
  trained:save_adapter_gguf(at "lora.gguf")
  local served = q.load(rotated_file)
  local models = { of = { q.load(plain_file), trained, trained }, tie = tie }
  check_served(type,
    serve(served, { false, served:read_adapter(at "peft"), served:read_adapter(at "lora.gguf") }, 8), models)
  check_served(type .. ", the model's own adapter", serve(trained, { "own" }, 8), { of = { trained }, tie = tie })

  -- The adapter is the model's, rotated or not; merged, the weights stay rotated.
  local ids = documents[1].tokens
  local with = flat(trained:logits(ids))
  close(type .. ": the adapter on the base that is not rotated",
    flat(q.load(plain_file):load_adapter(at "peft"):logits(ids)), with, rounding)
  close(type .. ": loaded again", flat(q.load(rotated_file):load_adapter(at "lora.gguf"):logits(ids)), with, 1e-6)
  close(type .. ": merged", flat(trained:merge():logits(ids)), with, rounding)
  trained:save_gguf(at "merged.gguf", { type = "f32" })
  close(type .. ": the merged file", flat(q.load(at "merged.gguf"):logits(ids)), with, rounding)
  return ("%s: loss %.3f to %.3f, within %.0e of the base's that is not rotated"):format(type, curve[1], curve[#curve],
    math.abs(curve[#curve] / wanted[#wanted] - 1))
end

print(adapters("f32", 1e-4))
for _, type in ipairs { "pq2_0", "ptq1_0" } do print(adapters(type, 0.05)) end
print "rotated: files, adapters and merged weights are those of the models that are not rotated"
