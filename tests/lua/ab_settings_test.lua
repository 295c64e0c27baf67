-- Settings side by side: what computes the same is equal to the bit, or within the bound of its dtype; what cannot be
-- compared is refused.
local ab_settings = require "qeng.train.ab_settings"
local demo = require "qeng.train.demo"
local q = require "qeng"
local scratch = require "scratch"

q.device { device = "cpu", threads = 2 }
demo.write_examples(scratch.at "data.jsonl", 0, 60)
local model, steps = demo.model(), 6
local data = q.packets(scratch.at "data.jsonl", { tokenizer = q.tokenizer(model), cache_dir = scratch.folder })
local function compare(a, b, more)
  local given = { model = model, data = data, a = a, b = b, steps = steps, turn = 2, row_tokens = 256, rank = 4,
    lr = 1e-3, dtype = "f32", threads = 1 }
  for name, value in pairs(more or {}) do given[name] = value end
  return ab_settings.compare(given)
end
local function bits(a, b, more)
  local found = compare(a, b, more)
  assert(found.equal and not found.first and found.loss == 0 and found.parameters == 0, a .. " has other bits")
  return found
end
local function close(a, b, more)
  local found = compare(a, b, more)
  assert(found.within and found.loss < found.bound, ("%s and %s: losses differ by %g"):format(a, b,
    found.loss))
  return found
end

-- ---- captured against eager, kept against recomputed, other threads, mapped weights: equal to the bit
local found = bits("eager=true", "eager=false")
assert(#found.a.losses == steps and found.a.losses[1] > found.a.losses[steps], "nothing was learned")
found = bits("recompute=true", "")
assert(found.a.memory.activations < found.b.memory.activations and found.a.peak < found.b.peak)
bits("recompute=true,dtype=bf16", "dtype=bf16")
bits("threads=2", "threads=1")
bits("weights=map", "weights=copy")

-- ---- the losses are those of q.train
local trained = q.load(model, { dtype = "f32" }):lora { rank = 4, alpha = 8, seed = 0 }
local result = q.train { model = trained, data = data, out = scratch.at "out", steps = steps, row_tokens = 256,
  lr = 1e-3, checkpoints = false, pad = q.tokenizer(model):id "<|endoftext|>" }
for i, row in ipairs(result.metrics) do
  assert(math.abs(row.loss - found.b.losses[i]) < 1e-9 * row.loss, ("step %d: %.9g, q.train %.9g"):format(i,
    found.b.losses[i], row.loss))
end

-- ---- another order of sums: padded rows, all logits at once, tensor algebra. The first step's loss has no update
-- behind it: it differs by a few roundings of 6e-8.
for _, a in ipairs { "pad=true", "head=logits", "kernels=algebra" } do
  local other = close(a, "")
  local one, two = other.a.losses[1], other.b.losses[1]
  assert(math.abs(one - two) <= 4e-7 * two, ("%s: the first loss is %.9g, not %.9g"):format(a, one, two))
end
assert(compare("pad=true,rows=2", "rows=2").a.full < 1)
assert(not close("dtype=f32", "dtype=bf16").equal)
assert(not compare("dtype=f32", "dtype=bf16", { bound = 1e-7 }).within)

-- Gated delta nets (Qwen3.5) as well: no state goes from a document to the next one in its row.
local hybrid = require "hybrid_model"
hybrid.fresh():save(scratch.at "hybrid")
local writer = q.ndp.create(scratch.at "lengths.qubgpu")
for i = 1, 100 do
  local tokens = {}
  for t = 1, 4 + i * i % 53 do tokens[t] = (i * 31 + t * t * 7) % 40 end
  writer:add(tokens)
end
writer:finish()
local lengths = q.ndp.open(scratch.at "lengths.qubgpu")
local of_hybrid = { model = scratch.at "hybrid", data = lengths, row_tokens = 64, rows = 2 }
local packed = close("pad=true", "", of_hybrid)
assert(packed.a.full < 0.7 and packed.b.full > 0.9, "padded rows are as full as packed ones")
assert(math.abs(packed.a.losses[1] / packed.b.losses[1] - 1) <= 4e-7, "a packed document's loss is another")
close("kernels=algebra", "", of_hybrid)
bits("recompute=true", "", of_hybrid)

-- A loss that is a little wrong is beyond the bound.
local cross_entropy = q.losses.cross_entropy
q.losses.cross_entropy = function(logits, targets) return cross_entropy(logits, targets, { sum = true, z = 1e-4 }) end
assert(not compare("head=logits", "").within)
q.losses.cross_entropy = cross_entropy

-- ---- what differs by design is refused, unless only costs are compared
scratch.refused("row_tokens: other batches, so that step 1 trains on other documents", compare, "row_tokens=128", "")
scratch.refused("optim: another way to learn", compare, "optim=lion", "optim=adamw")
scratch.refused("dropout: drawn by slot", compare, "dropout=0.1,pad=true", "dropout=0.1")
found = compare("mode=full,row_tokens=128", "", { costs = true, steps = 2 })
assert(found.design and found.equal == nil and found.a.ms > 0 and found.speedup > 0)
bits("dropout=0.1,eager=true", "dropout=0.1", { steps = 2 })

-- ---- settings
scratch.refused("recompte: no setting of a training step; did you mean recompute?", compare, "recompte=true", "")
scratch.refused("eager: expected NAME=VALUE", compare, "eager", "")
scratch.refused("eager: true or false, not yes", compare, "eager=yes", "")
scratch.refused("seed is of both sides: give --seed", compare, "seed=1", "")
scratch.refused("one of f32, bf16", compare, "dtype=f64", "")
local opt = require("qeng.train.ab_side").parse({ lr = 5 }, "targets=q_proj,v_proj, pad=true")
assert(opt.targets[2] == "v_proj" and opt.pad and opt.lr == 5 and opt.rank == 16)
print "ab_settings: ok"
