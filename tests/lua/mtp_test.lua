-- A head that drafts tokens: its loss and gradients are those of the equations written out, documents know nothing of
-- each other, folders keep it, and with its guesses requests get the text that they get without.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local cases = require "engine_cases"
local export = require "qeng.gguf.export"
local hybrid = require "hybrid_model"
local pays = require "qeng.infer.pays"
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
do
  local function second_loss() return select(4, with_model:loss(singles[4]))[2] end
  local captured, loss = q.capture(second_loss)
  captured:run()
  assert(loss:item() == second_loss():item(), "a captured loss is another one")
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
  local setups = { {}, { draft = "mtp", draft_always = true }, { draft = "mtp", draft_vocab = 16 },
    { draft = "mtp", draft_always = true, draft_vocab = { 2, 5, 10, 4, 14, 11, 39 } } }
  for i, setup in ipairs(setups) do
    setup.max_batch = 2
    local engine = learner:engine(setup)
    local r = engine:submit { ids = { unpack(ids, 1, 20) }, max_tokens = 60, temperature = 0, stop_ids = {} }
    engine:finish()
    texts[i] = table.concat(r.output, " ")
    if i == 2 then
      assert(engine.steps < 25 and r.accepted > 40, ("%d steps, %d of %d guesses true"):format(engine.steps, r.accepted,
        r.drafted))
    end
    assert(i < 4 or r.accepted > 20, "guesses of a list of tokens are not mapped back")
    engine:close()
  end
  for i = 2, #texts do assert(texts[i] == texts[1], "guesses changed a text") end
  refused("draft_vocab[2] is 40; the model has tokens 0 to 39", learner.engine, learner,
    { draft = "mtp", draft_vocab = { 1, 40 } })

  -- Of a stored head the rows of a list are kept as q8_0.
  learner:save_gguf(at "stored.gguf", { type = "q8_0" })
  local _, stored = said(q.load, at "stored.gguf")
  stored:attach_mtp()
  local outputs = {}
  for i, setup in ipairs { {}, { draft = "mtp", draft_always = true, draft_vocab = { 2, 5, 10, 4, 14, 11 } } } do
    local engine = stored:engine(setup)
    local r = engine:submit { ids = { unpack(ids, 1, 20) }, max_tokens = 40, temperature = 0, stop_ids = {} }
    engine:finish()
    outputs[i] = table.concat(r.output, " ")
    assert(i == 1 or r.accepted > 5, "no guess of a stored head was right")
    engine:close()
  end
  assert(outputs[1] == outputs[2], "guesses of a stored head changed a text")
end

-- ---- q.finetune trains it beside an adapter, in whose folder it lies, or beside the whole model
do
  local lines = {}
  for i = 1, 40 do lines[i] = q.json.encode { prompt = "how many? " .. i, completion = ("%d geese"):format(i) } end
  q.fs.write(at "data.jsonl", table.concat(lines, "\n") .. "\n")
  local function run(name, more)
    local opt = { model = "recipes/tiny", data = at "data.jsonl", out = at(name), steps = 4, row_tokens = 64,
      eval_every = 1, best = true, mtp = 0.3, mtp_depth = 2 }
    for key, value in pairs(more) do opt[key] = value end
    return select(2, said(q.finetune, opt))
  end
  local function same_heads(a, b)
    for i, parameter in ipairs(a.mtp.parameters) do
      if q.quant.squared_error(parameter.tensor, b.mtp.parameters[i].tensor) ~= 0 then return false end
    end
    return true
  end
  local made, fresh = run("lora", {}), q.load "recipes/tiny"
  fresh:attach_mtp()
  assert(not same_heads(made, fresh), "the head has not learned")
  local again = q.load "recipes/tiny"
  again:load_adapter(at "lora/adapter")
  assert(same_heads(made, again), "an adapter's folder keeps the head that was trained beside it")
  assert(not same_heads(run("further", { adapter = at "lora/adapter" }), made))
  local whole = run("full", { mode = "full" })
  again = select(2, said(q.load, at "full/model"))
  again:attach_mtp { from = "folder" }
  assert(same_heads(whole, again), "a fully trained model keeps its head")
end

-- ---- sampled texts too: a guess counts if it is what the request's own random numbers draw
do
  local function sampled(setup, count, opt)
    local engine, list = learner:engine(setup), {}
    for seed = 1, count do
      list[seed] = engine:submit { ids = { 1, 2, 5, 10 }, max_tokens = opt.max_tokens, temperature = opt.temperature,
        seed = seed, stop_ids = {} }
    end
    engine:finish()
    engine:close()
    return list
  end
  local drafts = { draft = "mtp", draft_always = true }
  for _, temperature in ipairs { 0.5, 1, 2 } do
    local opt, right = { max_tokens = 40, temperature = temperature }, 0
    local without, with = sampled({}, 12, opt), sampled(drafts, 12, opt)
    for seed, r in ipairs(with) do
      right = right + r.accepted
      assert(table.concat(r.output, " ") == table.concat(without[seed].output, " "),
        ("guesses changed the text of seed %d at temperature %g"):format(seed, temperature))
    end
    assert(right > 0, "no guess was right")
  end

  -- The second token, drawn beside a guess of it, has the model's own distribution: Pearson's chi-square over 4000
  -- seeds, against sums of P(a) P(b | a).
  local vocab, expected, drawn, guesses, right = learner.config.vocab, {}, {}, 0, 0
  local function probabilities(ids)
    local logits = q.no_grad(learner.logits, learner, ids)
    return (logits:rows(#ids - 1, 1) / 2):softmax():reshape({ vocab }):table()
  end
  for b = 1, vocab do expected[b], drawn[b] = 0, 0 end
  for a, p in ipairs(probabilities { 1, 2, 5, 10 }) do
    for b, after in ipairs(probabilities { 1, 2, 5, 10, a - 1 }) do expected[b] = expected[b] + 4000 * p * after end
  end
  for _, r in ipairs(sampled(drafts, 4000, { max_tokens = 3, temperature = 2 })) do
    drawn[r.output[2] + 1] = drawn[r.output[2] + 1] + 1
    guesses, right = guesses + r.drafted, right + r.accepted
  end
  local cells, sum, rare, drawn_rare = 0, 0, 0, 0
  local function add(found, wanted) cells, sum = cells + 1, sum + (found - wanted) ^ 2 / wanted end
  for b = 1, vocab do
    if expected[b] >= 5 then add(drawn[b], expected[b])
    else rare, drawn_rare = rare + expected[b], drawn_rare + drawn[b] end
  end
  if rare > 0 then add(drawn_rare, rare) end
  local freedom = cells - 1
  -- That of p = 0.001, by Wilson and Hilferty.
  local most = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ^ 3
  assert(guesses == 4000 and right > 100 and right < 3900 and freedom > 5 and sum < most,
    ("chi-square %.1f of %d degrees, %d of %d guesses right"):format(sum, freedom, right, guesses))
end

local guessed, right = 0, 0
local drafting = { hybrid.fresh { vocab_size = 320 }, hybrid.fresh { vocab_size = 320 }, cases.model "llama" }
for seed, each in ipairs(drafting) do
  each:attach_mtp { input = seed == 2 and "pre" or "post" }
  local found = cases.schedule(11 * seed, { model = each, count = 24, pages = 14, page_tokens = 64, draft = "mtp" })
  guessed, right = guessed + found.guessed, right + found.accepted
end
assert(guessed > right and right > 0, ("%d of %d guesses right"):format(right, guessed))

-- ---- guessing where it pays: of 4000 steps nearly all go the better way, and what changes is noticed
do
  local function share(tokens_of, watch)
    local guessed_steps, from = 0, 0
    for step = 1, 4000 do
      local guesses = watch:guesses(8)
      if guesses then guessed_steps = guessed_steps + 1 end
      if step == 3000 then from = guessed_steps end
      watch:learn(8, guesses and tokens_of(step) or 8, guesses and 1.5 or 1)
    end
    return guessed_steps / 4000, guessed_steps - from
  end
  local function noisy(mean) return function(step) return mean * (0.5 + step * 0.618034 % 1) end end
  local better, worse = share(noisy(15), pays.new()), share(noisy(9), pays.new())
  assert(better > 0.97 and worse < 0.03, ("guesses in %.3f and %.3f of the steps"):format(better, worse))
  local _, late = share(function(step) return step < 1000 and 9 or 20 end, pays.new())
  assert(late > 900, ("guesses pay from step 1000 on, and of the last 1000 steps %d have some"):format(late))
end
print "mtp: as written out, kept in folders, and its guesses change no text"
