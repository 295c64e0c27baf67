-- Two settings side by side (recipes/ab_settings.lua): the same weights, documents and seed, in one process, in turns
-- of some steps, so that a busy machine slows both. The code of q.train runs (train/ab_side.lua); making batches is not
-- timed.
--
--   local found = ab_settings.compare { model =, data = PacketFile, a = "", b = "recompute=true", steps = 30, ... }

local ab_side = require "qeng.train.ab_side"
local options = require "qeng.console.options"
local q = require "qeng.core"

local ab_settings = {}

-- Usual speed-ups, one at a time: what is named, and the settings of both sides.
ab_settings.table = {
  { "padding-free packing", "pad=true", "pad=false" },
  { "loss fused with the head", "head=logits", "head=fused" },
  { "fused norms and SwiGLU", "kernels=algebra", "kernels=fused" },
  { "activations kept", "recompute=true", "recompute=false" },
  { "captured program", "eager=true", "eager=false" },
}

local function differing(a, b, names)
  local list, one, other = {}, options.settings(a), options.settings(b)
  for _, name in ipairs(names) do
    if one[name] ~= other[name] then list[#list + 1] = name end
  end
  return list
end

local function same_documents(one, other)
  for step in ipairs(one) do
    local keys = {}
    for sign, steps in pairs { [1] = one, [-1] = other } do
      for _, batch in ipairs(steps[step]) do
        for _, piece in ipairs(batch) do
          local key = ("%d:%d:%d"):format(piece.record, piece.begin, piece.tokens)
          keys[key] = (keys[key] or 0) + sign
        end
      end
    end
    for _, count in pairs(keys) do if count ~= 0 then return false, step end end
  end
  return true
end

-- Why the losses of two sides differ by design, or nil.
local function by_design(a, b)
  local names = differing(a.opt, b.opt, ab_side.learning)
  if #names > 0 then return table.concat(names, ", ") .. ": another way to learn" end
  local equal, step = same_documents(a.documents, b.documents)
  if not equal then
    return ("%s: other batches, so that step %d trains on other documents"):format(
      table.concat(differing(a.opt, b.opt, ab_side.documents), ", "), step)
  end
  local drawn = a.opt.dropout > 0 and "dropout" or a.opt.neftune > 0 and "neftune"
  if drawn and #differing(a.opt, b.opt, { "pad", unpack(ab_side.documents) }) > 0 then
    return drawn .. ": drawn by slot, and the documents lie in other slots"
  end
end

local function relative(one, other)
  local apart = math.abs(one - other) / math.max(math.abs(one), 1e-30)
  return apart == apart and apart or math.huge  -- a loss that is not a number is within no bound
end

-- What differs: first (the step, nil if none), loss, norm and parameters (largest relative differences), equal.
local function differences(a, b)
  local found = { loss = 0, norm = 0 }
  for i, loss in ipairs(a.losses) do
    if loss ~= b.losses[i] or a.norms[i] ~= b.norms[i] then found.first = found.first or i end
    found.loss = math.max(found.loss, relative(loss, b.losses[i]))
    found.norm = math.max(found.norm, relative(a.norms[i], b.norms[i]))
  end
  local equal
  found.parameters, equal = b:apart(a)
  found.equal = equal and not found.first
  return found
end

local function median(list)
  local sorted = { unpack(list) }
  table.sort(sorted)
  local n = #sorted
  return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end
local function from(list, first) return { unpack(list, first) } end

local function sum(list, first)
  local total = 0
  for i = first, #list do total = total + list[i] end
  return total
end

-- What a side costs, after its first `untimed` steps:
--   ms, least     of a step: the median and the least
--   tok_s, full   real tokens a second, and their share of the slots that are computed
--   memory, peak  {[account] = peak bytes}, and all together
local function costs(side, untimed)
  local seconds, peak = from(side.seconds, untimed + 1), 0
  local tokens, memory = sum(side.tokens, untimed + 1), side:memory()
  for _, bytes in pairs(memory) do peak = peak + bytes end
  return { text = side.text, losses = side.losses, seconds = side.seconds, ms = 1e3 * median(seconds),
    least = 1e3 * math.min(unpack(seconds)), tok_s = tokens / #seconds / median(seconds),
    full = tokens / sum(side.slots, untimed + 1), memory = memory, peak = peak }
end

-- The most that losses and parameters may differ by, relative, where both compute the same in another order or dtype.
--   losses      A rounding is half an ulp: 2^-24 = 6e-8 in f32, 2^-9 = 2e-3 in bf16. Sums of thousands of terms in f32
--               differ by some ten of them, steps carry them on, and Lion's signs make whole moves of them: 1700. In
--               bf16 a mean over tokens evens out most: 10. Half an ulp of E4M3 is 2^-4, and a sum of numbers
--               that are off by so much is off by some 3e-2 of its size, in every layer: steps of a released model of
--               135 million weights differed by up to 0.16.
--   parameters  AdamW divides a gradient by its own size, so an element whose gradient is mere rounding moves by the
--               whole rate; an adapter's B begins at 0 and consists of such moves.
-- With experts, a rounding sends a token to another one, and its loss changes by its own size: ten of a thousand such
-- tokens are 1e-2, which is added.
ab_settings.bounds = { f32 = { loss = 1e-4, parameters = 1e-2 }, bf16 = { loss = 2e-2, parameters = 0.5 },
  fp8 = { loss = 0.2, parameters = 1 }, experts = { loss = 1e-2, parameters = 0.2 } }

-- Sets the bounds, and whether what differs is within them.
local function judge(found, model, bound)
  local bounds, more = ab_settings.bounds[found.dtype], { loss = 0, parameters = 0 }
  found.experts = model.config.experts ~= nil
  if found.experts then more = ab_settings.bounds.experts end
  local loss, parameters = bounds.loss + more.loss, bounds.parameters + more.parameters
  found.bound = bound or loss
  found.parameters_bound = parameters * found.bound / loss
  found.within = found.loss <= found.bound and found.parameters <= found.parameters_bound
end

-- given: model (a path), model_file, data, pad_token, a and b (settings), steps, turn (steps), costs (true: also where
-- losses differ by design), bound (of losses; nil: by dtype), speak(step), and for both sides options of the set
-- "settings". Returns a and b (costs), speedup (of b over a: the median over steps), and what differs, with dtype,
-- experts, bound, parameters_bound and within; or design, why losses are not compared.
function ab_settings.compare(given)
  collectgarbage()
  collectgarbage()  -- the models of a comparison before this one
  local a, b = ab_side.new(given, given.a), ab_side.new(given, given.b)
  local design = by_design(a, b)
  if design and not given.costs then
    q.error("value", ("%s: losses of these two differ by design; --costs compares what they cost"):format(design))
  end
  a:begin()
  b:begin()
  local turn, order = given.turn or 5, { a, b }
  for first = 1, given.steps, turn do
    for _, side in ipairs(order) do
      for number = first, math.min(first + turn - 1, given.steps) do side:step(number) end
    end
    order[1], order[2] = order[2], order[1]  -- each comes first in turn
    if given.speak then given.speak(math.min(first + turn - 1, given.steps)) end
  end
  local untimed = math.min(2, given.steps - 1)  -- the first makes the program, the second its caches
  local found = { a = costs(a, untimed), b = costs(b, untimed), design = design, steps = given.steps }
  local ratios = {}
  for i = untimed + 1, given.steps do ratios[#ratios + 1] = a.seconds[i] / b.seconds[i] end
  found.speedup = median(ratios)
  if not design then
    for name, value in pairs(differences(a, b)) do found[name] = value end
    found.dtype = (a.model.fp8 or b.model.fp8) and "fp8"
      or (a.model.dtype == "bf16" or b.model.dtype == "bf16") and "bf16" or "f32"
    judge(found, b.model, given.bound)
  end
  a:finish()
  b:finish()
  return found
end

return ab_settings
