-- Comparisons of rules for one-bit weights: runs that were stopped give the same figures, flips are those of the signs.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local rules = require "qeng.onebit.compare_rules"
local run_one, char_text = require "qeng.onebit.compare_run", require "qeng.onebit.compare_text"

q.device { device = "cpu", threads = 2 }

local dir = ("%s/qeng_onebit_compare_%d_%d"):format(os.getenv "TMPDIR" or "/tmp", os.time(), math.random(1e9))
q.fs.mkdir(dir)

local lines = {}
for i = 1, 300 do lines[i] = ("line %d of a text: %d\n"):format(i, i * i) end
q.fs.write(dir .. "/text.txt", table.concat(lines))
local text = char_text.open(dir .. "/text.txt")
local function set_of(folder)
  return { text = text, rows = 2, tokens = 16, steps = 20, points = 4, point_windows = 4, folder = folder,
      save_every = 3, settings = "these", values = {
    architectures = { "QengAbsoluteForCausalLM" }, model_type = "qeng_absolute", vocab_size = #text.symbols,
    hidden_size = 32, num_hidden_layers = 1,
    num_attention_heads = 2, num_key_value_heads = 2, intermediate_size = 32, max_position_embeddings = 16,
    rms_norm_eps = 1e-6, hidden_act = "silu",
    tie_word_embeddings = false } }
end
local function figures(result)
  result.seconds = nil
  return q.json.encode(result)
end
for number, more in ipairs { { rule = "frozen" }, { rule = "latent" }, { rule = "counter", levels = 255 },
  { rule = "counter", levels = 7, target = 2 }, { rule = "bop" },
  { rule = "grid", grid_levels = 1 }, { rule = "dense" },
      { rule = "counter", levels = 3, phases = { parts = 2, steps = 4 } } } do
  local case = { name = "case " .. number, lr = 1e-2, seed = 3 }
  for key, value in pairs(more) do case[key] = value end
  local whole, folder = figures(run_one(case, set_of())), ("%s/case_%d"):format(dir, number)
  q.fs.mkdir(folder)
  for _, stop in ipairs { 5, 11, 19 } do  -- it goes on from the steps 0, 3 and 9
    assert(not pcall(run_one, case, set_of(folder), function(step) if step == stop then error "stopped" end end))
  end
  local first
  local resumed = figures(run_one(case, set_of(folder), function(step) first = first or step end))
  assert(first == 19, case.name .. ": went on with step " .. first)
  assert(resumed == whole, ("case %d resumed: %s, whole: %s"):format(number, resumed, whole))
  local others = set_of(folder)
  others.settings = "others"
  local ok, err = pcall(run_one, case, others)
  assert(not ok and tostring(err.message):find "holds a run of other settings %(these; these are others%)",
    tostring(err.message))
  for pattern, change in pairs {
    ["has case.lr 0.01, this one 0.02; give the same"] = function(c) c.lr = 2e-2 end,
    ["has case.scale_rate none, this one 0.1"] = function(c) c.scale_rate = 0.1 end,
    ["has values.num_attention_heads 2, this one 1"] = function(_, s)
      s.values.num_attention_heads, s.values.num_key_value_heads = 1, 1
    end,
  } do
    local other, here = set_of(folder), {}
    for key, value in pairs(case) do here[key] = value end
    change(here, other)
    ok, err = pcall(run_one, here, other)
    assert(not ok and tostring(err.message):find(pattern, 1, true),
      ("%s, expected %s"):format(tostring(err.message), pattern))
  end
end
-- Latent signs flip, and the points of the curve show it: here the bits that move are counted one by one. Weights
-- that are no bits have no flips.
do
  local before, moved = {}, 0
  local settle = rules.settle
  rules.settle = function(model, subsequence)
    for i, latent in ipairs(model.latents) do before[i] = latent.bits:to "f32":table() end
    settle(model, subsequence)
    for i, latent in ipairs(model.latents) do
      local after = latent.bits:to "f32":table()
      for r, row in ipairs(after) do
        for c, sign in ipairs(row) do moved = moved + (sign ~= before[i][r][c] and 1 or 0) end
      end
    end
  end
  local ok, result = pcall(run_one, { name = "latent", rule = "latent", lr = 1e-2, latent_lr = 0.1, seed = 3 },
    set_of())
  rules.settle = settle
  assert(ok, tostring(result))
  local weights, by_tenth = 7 * 32 * 32, 0
  for _, rate in ipairs(result.flips) do by_tenth = by_tenth + rate * 2 * weights / 1000 end  -- a tenth is two steps
  assert(moved > 0 and result.flips_per_weight == moved / weights,
    ("%g flips a weight, %d signs changed"):format(result.flips_per_weight, moved))
  assert(#result.flips == 10 and math.abs(by_tenth - moved) < 1e-6 * moved, "the tenths have other flips")
  for _, rule in ipairs { "grid", "dense" } do
    local other = run_one({ name = rule, rule = rule, lr = 1e-2, seed = 3 }, set_of())
    assert(other.flips_per_weight == nil and #other.flips == 0, rule .. " weights have flips")
  end
end
do  -- each part has its turn in a run shorter than its phases
  local total, phased = 7 * 32 * 32, run_one({ name = "short", rule = "counter", levels = 3, lr = 1e-2, seed = 3,
    phases = { parts = 4, steps = 100, keep = true } }, set_of())
  for _, count in ipairs(phased.levels) do total = total - count end
  assert(total == 0, total .. " weights never had counters")
end
-- scales beyond f32
local lost = run_one({ name = "diverging", rule = "latent", lr = 1, seed = 3, scale_rate = 1e38 }, set_of())
assert(lost.diverged and lost.diverged < 20 and not lost.loss, "a loss that is not a number is no end of the run")

q.fs.remove(dir)
print "one-bit comparisons: ok"
