-- Perplexity counts the targets that llama.cpp counts, and follows from the logits. A golden set tells a tie from a
-- difference.
local q = require "qeng"
local golden = require "qeng.infer.golden"
local perplexity = require "qeng.infer.perplexity"

-- llama.cpp: 512 - 1 - 256 = 255 targets of each window of its default; with a stride of 256, 256 targets of each
-- window.
local windows = perplexity.windows(2000, 512)
assert(#windows == 3 and windows[3].start == 1024 and #windows[1].wanted == 255 and windows[1].wanted[1] == 256 and
  windows[1].wanted[255] == 510)
windows = perplexity.windows(512 + 256 * 19 + 1, 512, 256)
assert(#windows == 20 and windows[2].start == 256 and #windows[1].wanted == 256 and windows[1].wanted[1] == 255 and
  windows[1].wanted[256] == 510)
assert(#perplexity.windows(511, 512) == 0)
local mean, err, count = perplexity.mean { 1, 2, 3, 6 }
-- as llama.cpp: sqrt((E[x^2] - E[x]^2) / (n - 1))
assert(mean == 3 and count == 4 and math.abs(err - math.sqrt(3.5 / 3)) < 1e-12)
assert(perplexity.quantile({ 4, 1, 3, 2 }, 0.5) == 2 and perplexity.quantile({ 4, 1, 3, 2 }, 0.99) == 4)

local model = q.load "recipes/tiny"
local text = ("Record: On Tuesday David cleaned five blue rings in Malta. "):rep(12)
local watched = 0
local found = perplexity.run(model, text,
  { context = 32, reference = model, watch = function() watched = watched + 1 end })
local ids = perplexity.ids(model.tokenizer, text)
local nll, targets = 0, 0
for w = 0, math.floor(#ids / 32) - 1 do
  local these = {}
  for k = 1, 32 do these[k] = ids[32 * w + k] end
  local rows = model:logits(these):table()
  for position = 16, 30 do
    local sum = 0
    for _, z in ipairs(rows[position + 1]) do sum = sum + math.exp(z) end
    nll, targets = nll + math.log(sum) - rows[position + 1][these[position + 2] + 1], targets + 1
  end
end
assert(found.count == targets and watched == found.windows and found.windows == math.floor(#ids / 32))
-- two paths, bf16 perhaps
assert(math.abs(found.nll - nll / targets) < 2e-3 * math.abs(nll / targets), found.nll .. " " .. nll / targets)
assert(math.abs(found.kl) < 1e-9 and found.same_top == 1 and found.ratio == 1)
local _, problem = q.try(perplexity.run, model, "short", { context = 32 })
assert(problem.message:find "a window needs 32")

local set = q.json.decode(q.json.encode(golden.record(model, 8)))
local results, different = golden.compare(model, set, 0.05)
assert(different == 0 and #results == 10)
for _, r in ipairs(results) do assert(r.result == "same" and math.abs(r.kl) < 1e-4, r.kl) end
local answer = set.answers[1]
local likely = answer.top[3]
-- Acts as if another token had been kept. The token that comes was then the likeliest but `place` - 1, by that much
-- less likely.
local function kept_otherwise(place, gaps)
  likely[1][1], likely[place][1] = likely[place][1], likely[1][1]
  answer.output[3] = likely[1][1]
  for i, gap in ipairs(gaps) do likely[i + 1][2] = likely[1][2] - gap end
  results, different = golden.compare(model, set, 0.05)
  likely[1][1], likely[place][1] = likely[place][1], likely[1][1]
  assert(results[1].step == 3 and different == (results[1].result == "tie" and 0 or 1))
  return results[1].result, results[1].gap
end
assert(kept_otherwise(2, { 0.01 }) == "tie" and kept_otherwise(2, { 0.5 }) == "different")
local result, gap = kept_otherwise(3, { 0.01, 0.5 })  -- a third token, though the two likeliest are near
assert(result == "different" and math.abs(gap - 0.5) < 1e-9)
likely[1][1] = likely[3][1]  -- the token that comes is none of those that were kept
result, gap = kept_otherwise(2, { 0.01 })
assert(result == "different" and gap == math.huge)
