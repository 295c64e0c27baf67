-- A head that drafts tokens: its loss and gradients are those of the equations written out, documents know nothing of
-- each other, folders keep it, and with its guesses requests get the text that they get without.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local cases = require "engine_cases"
local export = require "qeng.gguf.export"
local hybrid = require "hybrid_model"
local scratch = require "scratch"
local types = require "qeng.gguf.types"
local at, refused, said = scratch.at, scratch.refused, scratch.said

local function document(length, seed)
  local ids, mask, below = {}, {}, cases.random(seed)
  for i = 1, length do ids[i], mask[i] = below(40), (i > length / 3) and 1 or 0 end
  return { tokens = ids, mask = mask }
end
local function distance(a, b)
  return math.sqrt(q.quant.squared_error(a, b) / math.max(1e-30, (q.quant.squared_error(q.zeros(b:shape()), b))))
end

-- ---- the loss, written out of the parts of a model: attention by the layer of the model itself
local model = hybrid.fresh()
local head = model:attach_mtp { seed = 3 }
model:train_mtp { alone = true, depth = 2 }
local given = document(70, 1)
local packed = q.pack { given }
packed.scale:fill(0.1)
do
  local losses = { (model:loss(packed)) }
  losses[2] = select(4, model:loss(packed))[1]
  local by_name = {}
  for _, parameter in ipairs(head.parameters) do by_name[parameter.name] = parameter.tensor end
  local expected = q.no_grad(function()
    local seq = { positions = packed.positions, cu_q = packed.cu_q }
    seq.rope = model:rope(70)
    local function normed(x, name) return q.rmsnorm(x, by_name["mtp." .. name .. ".weight"], model.config.eps, true) end
    local h, found = model.forward(packed.tokens, seq), {}
    for depth = 1, 2 do
      local ids, targets = {}, {}
      for t = 1, 70 do
        ids[t] = given.tokens[t + depth] or 0
        targets[t] = given.mask[t + depth + 1] == 1 and given.tokens[t + depth + 1] or -1
      end
      local e = normed(q.embedding(model.embed, q.tensor(ids, "i32"), "f32"), "pre_fc_norm_embedding")
      local u = q.linear(q.concat({ e, normed(h, "pre_fc_norm_hidden") }, 2), by_name["mtp.fc.weight"])
      local x, branch = head.block(u, nil, seq)
      h = normed(x + branch, "norm")
      local logits, sum = q.linear(h, model.head), 0
      for t = 1, 70 do
        if targets[t] >= 0 then
          local row = logits:rows(t - 1, 1)
          sum = sum + (row:logsumexp() - row:slice(2, targets[t], targets[t] + 1)):item()
        end
      end
      found[depth] = sum * 0.1
    end
    return found
  end)
  for depth = 1, 2 do
    local got = losses[depth]:item()
    assert(math.abs(got - expected[depth]) < 1e-5 * expected[depth],
      ("the loss %d ahead is %.9g, written out %.9g"):format(depth, got, expected[depth]))
  end
end

-- ---- packed documents: the gradients of a packed row are the sums of those of each alone
local function gradients(packs, of)
  for _, parameter in ipairs(of:trainable()) do
    parameter.tensor:requires_grad(true)
    if parameter.tensor:grad() then parameter.tensor:grad():fill(0) end
  end
  for _, each in ipairs(packs) do
    each.scale:fill(0.1)
    local loss, _, balance, drafts = of:loss(each)
    loss:backward(balance, unpack(drafts))
  end
  local found = {}
  for _, parameter in ipairs(of:trainable()) do found[parameter.name] = parameter.tensor:grad():clone() end
  return found
end
local documents = { document(30, 1), document(1, 2), document(2, 3), document(64, 4), document(3, 5) }
local singles = {}
for i, each in ipairs(documents) do singles[i] = q.pack { each } end
local with_model = hybrid.fresh():full()
with_model:attach_mtp()
with_model:train_mtp { weight = 0.5, depth = 2 }
for _, of in ipairs { model, with_model } do
  local together, alone = gradients({ q.pack(documents) }, of), gradients(singles, of)
  for name, gradient in pairs(alone) do
    local off = distance(together[name], gradient)
    assert(off < 1e-4, ("the gradient of %s is off by %g in a packed row"):format(name, off))
  end
end
assert(#model:trainable() == #head.parameters and #with_model:trainable() == #with_model.parameters + #head.parameters)

-- ---- folders: kept by save, by LoRA and merge; taken off
model:save(at "saved")
local _, read = said(q.load, at "saved")
assert(q.json.decode(q.fs.read(at "saved/config.json")).mtp_num_hidden_layers == 1)
read:attach_mtp { from = "folder" }
for i, parameter in ipairs(read.mtp.parameters) do
  assert(parameter.name == head.parameters[i].name
    and q.quant.squared_error(parameter.tensor, head.parameters[i].tensor) == 0, parameter.name)
end
local _, tuned = said(q.load, at "saved")
tuned:lora { rank = 2 }
tuned:merge()
tuned:save(at "merged")
assert(q.safetensors.open(at "merged/model.safetensors"):info "mtp.fc.weight", "a merged model keeps its head")
read:strip_mtp()
read:save(at "plain")
assert(not q.safetensors.open(at "plain/model.safetensors"):info "mtp.fc.weight")
assert(q.json.decode(q.fs.read(at "plain/config.json")).mtp_num_hidden_layers == 0)
local plain = q.load(at "plain")
refused("no head that drafts tokens in its folder", plain.attach_mtp, plain, { from = "folder" })
refused("attach_mtp first", plain.train_mtp, plain, {})
refused("no head that drafts tokens", plain.engine, plain, { draft = "mtp" })
refused("expected post or pre", plain.attach_mtp, plain, { input = "both" })

-- ---- GGUF files have it as a block behind the last, with norms that add one to their weights
for kind, more in pairs(hybrid.kinds) do
  local of = hybrid.fresh(more)
  of:attach_mtp { seed = 4 }
  of:save_gguf(at(kind .. ".gguf"), { type = "f32" })
  local text, back = said(q.load, at(kind .. ".gguf"))
  assert(text:find("that draft tokens (nextn) are left", 1, true), text)
  back:attach_mtp { from = "folder" }
  for i, parameter in ipairs(of.mtp.parameters) do
    local off = distance(back.mtp.parameters[i].tensor, parameter.tensor)
    assert(off < 1e-6, ("%s: %s is off by %g"):format(kind, parameter.name, off))
  end
  -- A folder's is written tensor by tensor, with the bits that the loaded model is written with.
  of:save(at(kind))
  local _, loaded = said(q.load, at(kind))
  loaded:attach_mtp()
  loaded:save_gguf(at "loaded.gguf", { type = "f32" })
  local source = export.open(at(kind))
  export.write(at "folder.gguf", source, types.plan("f32", "", source.shape, false))
  assert(q.fs.read(at "folder.gguf") == q.fs.read(at "loaded.gguf"), kind .. ": a folder gives another file")
end
do
  local of = cases.model "llama"
  of:attach_mtp {}
  local notes = of:save_gguf(at "llama.gguf", { type = "f32" }).notes
  assert(table.concat(notes):find("the head that drafts tokens is not written", 1, true), table.concat(notes))
end

-- ---- trained on what repeats, it guesses right; and whatever it guesses, texts are what they are without
local learner = hybrid.fresh({}, { seed = 2 }):full()
learner:attach_mtp()
learner:train_mtp { weight = 0.5, depth = 3 }
do
  local ids, mask = {}, {}
  for i = 1, 120 do ids[i], mask[i] = (i * i) % 13 + 1, 1 end
  local lesson, adamw = q.pack { { tokens = ids, mask = mask } }, q.adamw(learner:trainable(), { lr = 3e-3 })
  lesson.scale:fill(1 / 120)
  for _ = 1, 80 do
    q.scope(function()
      local loss, _, balance, drafts = learner:loss(lesson)
      loss:backward(balance, unpack(drafts))
      adamw:step { clip = 1 }
    end)
  end
  local texts = {}
  for i, setup in ipairs { {}, { draft = "mtp", draft_always = true }, { draft = "mtp", draft_vocab = 16 } } do
    setup.max_batch = 2
    local engine = learner:engine(setup)
    local r = engine:submit { ids = { unpack(ids, 1, 20) }, max_tokens = 60, temperature = 0, stop_ids = {} }
    engine:finish()
    texts[i] = table.concat(r.output, " ")
    if i == 2 then
      assert(engine.steps < 25 and r.accepted > 40, ("%d steps, %d of %d guesses true"):format(engine.steps, r.accepted,
        r.drafted))
    end
    engine:close()
  end
  assert(texts[1] == texts[2] and texts[1] == texts[3], "guesses changed a text")
end
local guessed, right = 0, 0
local drafting = { hybrid.fresh { vocab_size = 320 }, hybrid.fresh { vocab_size = 320 }, cases.model "llama" }
for seed, each in ipairs(drafting) do
  each:attach_mtp { input = seed == 2 and "pre" or "post" }
  local found = cases.schedule(11 * seed, { model = each, count = 24, pages = 14, page_tokens = 64, draft = "mtp" })
  guessed, right = guessed + found.guessed, right + found.accepted
end
assert(guessed > right and right > 0, ("%d of %d guesses right"):format(right, guessed))
print "mtp: as written out, kept in folders, and its guesses change no text"
