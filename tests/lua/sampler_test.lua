-- The samplers that llama.cpp has too leave of the same logits what llama.cpp's leave (tests/golden/sampler_golden.py).
local q = require "qeng"

local tokenizer = q.tokenizer "tests/golden/small_llama.gguf"
local kTolerance = 2e-5  -- llama.cpp computes in f32

local compared = 0
local function check(sampler, logits, left, what)
  local got, count = sampler:distribution(q.tensor(logits)), 0
  for _ in pairs(left) do count = count + 1 end
  assert(#got == count, ("%s: %d tokens are left, of llama.cpp %d"):format(what, #got, count))
  for _, one in ipairs(got) do
    local expected = left[tostring(one.id)]
    assert(expected and math.abs(expected - one.p) < kTolerance, ("%s: token %d has %.6f, of llama.cpp %s"):format(
      what, one.id, one.p, tostring(expected)))
  end
  compared = compared + 1
end

for i, case in ipairs(q.json.decode(q.fs.read "tests/golden/sampler_golden.json")) do
  local options, what = case.options, ("case %d %s"):format(i, q.json.encode(case.options))
  if options.dry_sequence_breakers then options.tokenizer = tokenizer end
  local sampler = q.sampler(options)
  for j, token in ipairs(case.history) do
    if j <= #case.history / 2 then sampler:prompt { token } else sampler:accept(token) end
  end
  if case.left then check(sampler, case.logits, case.left, what) end
  for j, step in ipairs(case.steps or {}) do
    check(sampler, step.logits, step.left, ("%s, step %d"):format(what, j))
    sampler:accept(step.drawn)
  end
end
assert(compared == 33 + 8 * 12, compared)

-- XTC's chance: over many draws it comes as often as its probability says, and a seed gives the same draws.
local logits = q.tensor { 2, 1.9, 0, -1 }
local function firsts(seed)
  local sampler, drawn, count = q.sampler { xtc_probability = 0.3, xtc_threshold = 0.2, temperature = 0.01,
    seed = seed }, {}, 0
  for i = 1, 2000 do
    drawn[i] = sampler:next(logits)
    -- the less likely of the two likely ones, which such a temperature never draws
    count = count + (drawn[i] == 1 and 1 or 0)
  end
  return count, table.concat(drawn)
end
local count, drawn = firsts(3)
assert(math.abs(count - 600) < 100, count)
assert(select(2, firsts(3)) == drawn and select(2, firsts(4)) ~= drawn)

-- Settings that do not go together are refused.
local many = {}
for i = 1, 65 do many[i] = "text " .. i end
for options, message in pairs {
  [{ mirostat = 2, top_k = 5 }] = "top_k is not used beside mirostat",
  [{ mirostat = 3 }] = "mirostat is 3, expected 0 (off), 1 or 2",
  [{ dry_multiplier = -1 }] = "dry_multiplier is -1, expected 0",
  [{ dry_sequence_breakers = { "x" } }] = "give the tokenizer",
  [{ dry_multiplier = 1, dry_sequence_breakers = { "" }, tokenizer = tokenizer }] = "dry_sequence_breakers is empty",
  [{ dry_multiplier = 1, dry_sequence_breakers = many, tokenizer = tokenizer }] = "65 dry_sequence_breakers, at",
  [{ xtc_probability = 0.5, temperature = 0 }] = "temperature is 0, expected more than 0 beside xtc_probability",
  [{ dry_base = 0.5 }] = "dry_base is 0.5, expected 1",
} do
  local ok, err = q.try(q.sampler, options)
  assert(not ok and err.message:find(message, 1, true), err and err.message or message)
end
print(compared .. " distributions compared")
