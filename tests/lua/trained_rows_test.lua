-- A head computes the rows that are trained: the bits are those of computing all, eager, captured and resumed, a run
-- makes few recordings, and who promises too few trained rows is told.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local pass = require "qeng.train.pass"
local scratch = require "scratch"
q.device { device = os.getenv "QENG_TEST_DEVICE" or "cpu", threads = 1 }

local row_tokens = 128  -- whose eighths are 16 rows
local config = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 16, intermediate_size = 24,
  num_hidden_layers = 1,
  num_attention_heads = 2, num_key_value_heads = 2, vocab_size = 40, max_position_embeddings = 128, rms_norm_eps = 1e-6,
  rope_theta = 10000, tie_word_embeddings = false, hidden_act = "silu",
}
local function new_model() return q.random_model(config, { seed = 3, std = 0.2 }) end

-- Documents of which more is trained the later they come: of the first one token of 60, of the last all.
local function dataset()
  local writer = q.ndp.create(scratch.at "masked.qubgpu")
  for i = 1, 24 do
    local tokens, mask = {}, {}
    for t = 1, 60 do tokens[t], mask[t] = (i * 7 + t * t * 3) % 40, t > 60 - i * 60 / 24 and 1 or 0 end
    writer:add(tokens, mask)
  end
  writer:finish()
  return q.ndp.open(scratch.at "masked.qubgpu")
end
local data = dataset()

-- ---------------------------------------------------------------- one batch

local batches = data:batches { row_tokens = row_tokens, seed = 2 }
local few, many = batches:next(), batches:next()
if few:info().trained_tokens > many:info().trained_tokens then few, many = many, few end
local count = few:info().trained_tokens
assert(count < 48 and many:info().trained_tokens > 64, "the draw of batches is not what the test is about")
local micro_batch = q.micro_batch(few:info().tokens, few:info().max_documents)
micro_batch.scale:fill(0.01)
few:load(micro_batch)
assert(micro_batch.trained == count)

-- Loss, nll and all gradients as one text.
local function bits(prepare, trained)
  local model = prepare(new_model())
  micro_batch.trained = trained
  local parts = {}
  q.scope(function()
    local loss, nll = model:loss(micro_batch, row_tokens)
    loss:backward()
    parts = { loss:hash(), nll:hash() }
    for _, parameter in ipairs(model:trainable()) do parts[#parts + 1] = parameter.tensor:grad():hash() end
  end)
  return table.concat(parts, " ")
end
for name, prepare in pairs {
  full = function(model) return model:full() end,
  lora = function(model) return model:lora { rank = 2, seed = 1 } end,
} do
  local all = bits(prepare, nil)
  for _, trained in ipairs { count, count + 20, row_tokens } do
    assert(bits(prepare, trained) == all, ("%s: other bits where %d rows may be trained"):format(name, trained))
  end
end
local words = ("%d rows have a target, and at most 16 were expected"):format(count)
scratch.refused(words, bits, function(model) return model:full() end, 1)

-- The loss is that of all logits. A frozen head's token_nll takes the number too.
local model = new_model():lora { rank = 2, seed = 1 }
micro_batch.trained = count
q.no_grad(q.scope, function()
  local loss = model:loss(micro_batch, row_tokens):item()
  local logits = model:packed_logits(micro_batch, row_tokens)
  local plain = q.losses.cross_entropy(logits, micro_batch.targets, { sum = true }):item() * 0.01
  assert(math.abs(loss - plain) < 1e-5 * plain, ("%.9g, of all logits %.9g"):format(loss, plain))
  local some = model:logprobs(micro_batch, row_tokens):hash()
  micro_batch.trained = nil
  assert(some == model:logprobs(micro_batch, row_tokens):hash())
end)

-- ---------------------------------------------------------------- a captured program

-- What a program computes does not depend on the batch that it was captured with.
few:load(micro_batch)
local program, loss = q.capture(q.no_grad, function() return (model:loss(micro_batch, row_tokens)) end)
local function run(batch, trained)
  batch:load(micro_batch)
  program:run { trained = trained }
  return ("%.17g"):format(loss:item())
end
local function eager(batch)
  batch:load(micro_batch)
  return q.no_grad(q.scope, function() return ("%.17g"):format(model:loss(micro_batch, row_tokens):item()) end)
end
for _ = 1, 3 do  -- the first run, and those that a device may replay
  for _, batch in ipairs { few, many } do
    local trained = batch:info().trained_tokens
    assert(run(batch) == eager(batch) and run(batch, trained) == eager(batch))
  end
  scratch.refused("were expected: where targets were changed", run, many, count)
end
assert(program:stats().variants == 3, program:stats().variants .. " variants")
program:free()

-- ---------------------------------------------------------------- a run

local captured
local capture = pass.capture
function pass.capture(...)
  captured = capture(...)
  return captured
end
local function train(name, more)
  local trained, variants, shares, last = new_model():full(), 0, {}, nil
  local opt = { model = trained, data = data, out = scratch.at(name), steps = 14, row_tokens = row_tokens, lr = 1e-2,
    schedule = "constant", eval_share = 0.2, eval_every = 5, seed = 9, on_step = function(row)
      last = row
      shares[math.ceil(row.trained_tokens / 16)] = true
      if captured then variants = captured.program:stats().variants end
    end }
  for key, value in pairs(more or {}) do opt[key] = value end
  captured = nil
  scratch.said(q.train, opt)
  local parts, different = { ("%.17g"):format(last.loss) }, 0
  for i, parameter in ipairs(trained:trainable()) do parts[i + 1] = parameter.tensor:hash() end
  for _ in pairs(shares) do different = different + 1 end
  return table.concat(parts, " "), variants, different
end
local whole, variants, different = train "whole"
assert(different >= 3 and variants == different, ("%d variants of %d eighths"):format(variants, different))
assert(train("eager", { eager = true }) == whole, "eager and captured differ")
train("stopped", { steps = 6 })
assert(train("stopped", { resume = true }) == whole, "a resumed run has other bits")
assert(train("hooked", { on_batch = function(batch) assert(batch.trained == nil) end }) == whole)
scratch.refused("rows have a target", train, "wrong", { on_batch = function(batch) batch.trained = 0 end })
print(("a head computes trained rows: %d recordings of 14 steps"):format(variants))
