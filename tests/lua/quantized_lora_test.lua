-- Adapters on a quantized base, or on a bf16 base under f32. Gradients are those of the decoded weights: by float64 in
-- Lua for one layer, by a model of decoded weights for a whole one. Training lowers the loss. Merging gives decode(w) +
-- scale * b a.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local golden = require "golden"
local q = require "qeng"
local flat = golden.flat

local function close(what, got, wanted, limit)
  local _, relative = golden.differences(got, wanted)
  assert(relative <= limit, ("%s differs by %g"):format(what, relative))
  return relative
end

local function store(x, type)
  if type == "bf16" then return x:to "bf16" end
  return q.quantize(x, type)
end

-- ---------------------------------------------------------------- one layer, in float64

-- c[i, j] (+)= alpha * sum_l a(i, l) b(l, j), all Lua numbers
local function product(m, n, k, alpha, a, b, c)
  c = c or {}
  for i = 1, m do
    for j = 1, n do
      local sum = 0
      for l = 1, k do sum = sum + a(i, l) * b(l, j) end
      c[(i - 1) * n + j] = (c[(i - 1) * n + j] or 0) + alpha * sum
    end
  end
  return c
end
local function rows(list, columns) return function(i, j) return list[(i - 1) * columns + j] end end
local function columns(list, width) return function(i, j) return list[(j - 1) * width + i] end end

local function layer(type)
  local t, n, k, rank, scale = 5, 24, 512, 3, 1.5
  local w = store(q.randn({ n, k }, { std = 0.05, seed = 1 }), type)
  local function leaf(shape, seed)
    local x = q.randn(shape, { std = 0.5, seed = seed })
    x:requires_grad(true)
    return x
  end
  local x, a, b, weights = leaf({ t, k }, 2), leaf({ rank, k }, 3), leaf({ n, rank }, 4),
    q.randn({ 1, t * n }, { seed = 5 })
  local y = q.linear(x, w, { lora = { a = a, b = b, scale = scale } })
  local loss = q.linear(y:reshape { 1, t * n }, weights):reshape { 1 }  -- sum of weights * y
  loss:backward()

  local W, X, A, B, G = flat(w:to "f32"), flat(x), flat(a), flat(b), flat(weights)
  local xa = product(t, rank, k, 1, rows(X, k), columns(A, k))
  local wanted = product(t, n, k, 1, rows(X, k), columns(W, k),
    product(t, n, rank, scale, rows(xa, rank), columns(B, rank)))
  close(type .. ": y", flat(y), wanted, 1e-6)
  local gb = product(t, rank, n, scale, rows(G, n), rows(B, rank))
  close(type .. ": db", flat(b:grad()), product(n, rank, t, scale, columns(G, n), rows(xa, rank)), 1e-6)
  close(type .. ": da", flat(a:grad()), product(rank, k, t, 1, columns(gb, rank), rows(X, k)), 1e-6)
  local dx = product(t, k, n, 1, rows(G, n), rows(W, k), product(t, k, rank, 1, rows(gb, rank), rows(A, k)))
  close(type .. ": dx", flat(x:grad()), dx, 1e-6)
end

-- ---------------------------------------------------------------- a model

local values = {
  architectures = q.json.array { "Qwen2ForCausalLM" }, model_type = "qwen2", hidden_size = 256, intermediate_size = 256,
  num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 96,
  max_position_embeddings = 64,
  rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = true, hidden_act = "silu",
}

-- The same random model with its matrices quantized. decoded: as the f32 values that the blocks stand for.
local function model_of(type, decoded)
  local subsequence = 0
  local model = q.random_model(values, { weights = function(name, shape)
    subsequence = subsequence + 1
    if #shape == 1 then return q.zeros(shape, "f32", "weights"):fill(name:find "norm" and 1 or 0) end
    local w = store(q.randn(shape, { std = 0.06, seed = 7, subsequence = subsequence }), type)
    return decoded and w:to "f32" or w
  end })
  model:lora { rank = 4, seed = 3 }
  for i, parameter in ipairs(model:trainable()) do
    if parameter.name:find("lora_B", 1, true) then
      parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.02, seed = 9, subsequence = i }))
    end
  end
  return model
end

local documents = {}
for d = 1, 3 do
  local tokens, mask = {}, {}
  for i = 1, 9 + d do tokens[i], mask[i] = (i * (d + 2) + i * i) % 96, 1 end
  documents[d] = { tokens = tokens, mask = mask }
end
local micro_batch = golden.micro_batch(documents)

local function train(model) return golden.train(model, micro_batch) end

local function whole(type)
  local stored, decoded = model_of(type), model_of(type, true)
  assert(stored.linears[1].weight:dtype() == type and stored.head:dtype() == type)
  local worst, losses = 0, {}
  for i, model in ipairs { stored, decoded } do
    local loss = model:loss(micro_batch)
    loss:backward()
    losses[i] = loss:item()
  end
  assert(math.abs(losses[1] - losses[2]) <= 1e-5 * losses[2], type .. ": the loss is not the decoded model's")
  local of_decoded = decoded:trainable()
  for i, parameter in ipairs(stored:trainable()) do
    worst = math.max(worst,
      close(type .. ": " .. parameter.name, flat(parameter.tensor:grad()), flat(of_decoded[i].tensor:grad()), 2e-5))
    parameter.tensor:grad():fill(0)
  end
  local curve = train(stored)
  assert(curve[#curve] < 0.8 * curve[1], ("%s: the loss went from %g to %g"):format(type, curve[1], curve[#curve]))
  for step = 2, #curve do assert(curve[step] == curve[step]) end
  local before = stored:logits(documents[1].tokens)
  close(type .. ": merged logits", flat(stored:merge():logits(documents[1].tokens)), flat(before), 1e-4)
  assert(stored.linears[1].weight:dtype() == "f32")
  return ("%s: gradients within %.0e of the decoded base's, loss %.3f to %.3f"):format(
    type, worst, curve[1], curve[#curve])
end

for _, type in ipairs { "q4_k", "tq2_0", "bf16" } do
  layer(type)
  print(whole(type))
end
for _, type in ipairs { "q8_0", "q2_0", "int4" } do layer(type) end

-- ---------------------------------------------------------------- trained on a GGUF file, served by the engine from
-- the same file

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

-- Between the two best logits. The engine rounds activations to eight bits, which changes the difference of two of
-- these logits by up to 0.026 (q4_k) and 0.031 (tq2_0).
local tie = 0.02
local function of(i) return math.ceil(i / 3) end  -- the document of request i

local dir = os.tmpname()
os.remove(dir)
q.fs.mkdir(dir)
for _, type in ipairs { "q4_k", "tq2_0" } do
  local path, out = ("%s/%s.gguf"):format(dir, type), ("%s/%s"):format(dir, type)
  q.random_model(values):save_gguf(path, { type = type })
  local trained = q.load(path)
  assert(trained.linears[1].weight:dtype() == type)
  trained:lora { rank = 4, seed = 3 }
  local curve = train(trained)
  assert(curve[#curve] < curve[1])
  -- rows as in the file; those of a copy may be interleaved
  local mapped = train(q.load(path, { weights = "map" }):lora { rank = 4, seed = 3 })
  for step = 1, #curve do assert(curve[step] == mapped[step], type .. ": training differs where the file is mapped") end
  trained:save_adapter(out)
  trained:save_adapter_gguf(out .. "-lora.gguf")

  local served = q.load(path)
  local engine, requests = served:engine { max_batch = 4, pages = 40, chunk = 5 }, {}
  local adapters = { false, served:read_adapter(out), served:read_adapter(out .. "-lora.gguf") }
  for i = 1, 9 do  -- two of three with the adapter, as PEFT and as GGUF store it
    requests[i] = engine:submit { ids = documents[of(i)].tokens, max_tokens = 8, temperature = 0, stop_ids = {},
      adapter = adapters[i % 3 + 1] }
  end
  engine:finish()
  local bare, changed, parted = q.load(path), 0, 0
  for i, request in ipairs(requests) do
    local wanted, gaps = continue(i % 3 > 0 and trained or bare, documents[of(i)].tokens, 8)
    for n = 1, 8 do
      if request.output[n] ~= wanted[n] then
        assert(gaps[n] < tie, ("%s, request %d: served %s, expected %s, by %g"):format(
          type, i, table.concat(request.output, " "),
          table.concat(wanted, " "), gaps[n]))
        parted = parted + 1
        break
      end
    end
    local without = continue(bare, documents[of(i)].tokens, 8)
    if table.concat(without, " ") ~= table.concat(wanted, " ") then changed = changed + 1 end
  end
  assert(changed > 0, "the adapter changes nothing")
  assert(parted <= 1, ("%s: %d of 9 requests part from the forward pass, at ties"):format(type, parted))
  assert(engine:stats().used == 0)
  engine:close()
end
q.fs.remove(dir)
