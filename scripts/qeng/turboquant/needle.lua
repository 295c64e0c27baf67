-- Facts hidden in a text, at depths from its first token to its last, and asked for at its end: one pass of the model
-- finds what a type of the cache keeps of all depths. Facts are alike, so that each question has to find its own.
--   found     share of facts of whose answer each token is the likeliest, as greedy drawing would write it
--   logprob   of the right answer, in nats

local q = require "qeng.core"
local scoring = require "qeng.infer.scoring"
local statistics = require "qeng.report.statistics"

local needle = {}

local places = { "Lisbon", "Vienna", "Dublin", "Oslo", "Prague", "Athens", "Madrid", "Warsaw", "Cairo", "Lima",
  "Tokyo" }

-- A document of as many tokens as `ids`, of which the last make room for facts and questions: {ids =,
-- answers = {{at = the position whose next token is the answer's first, from 0, ids =}...} by depth}.
function needle.plant(tokenizer, ids)
  local questions, answers, length, seed = {}, {}, 0, 0
  for i = 1, #ids do seed = (31 * seed + ids[i]) % 99991 end
  for i, place in ipairs(places) do
    questions[i] = tokenizer:encode(("\nThe secret number of %s is"):format(place))
    answers[i] = { ids = tokenizer:encode((" %d.\n"):format(10000 + (seed + 37123 * i) % 90000)) }
    length = length + 2 * (#questions[i] + #answers[i].ids)
  end
  local filler, planted, used = #ids - length, {}, 0
  if filler < length then
    q.error("value", ("needles take %d tokens, the document has %d; give at least %d"):format(length, #ids, 2 * length))
  end
  local function add(list, first, last)
    for k = first, last do planted[#planted + 1] = list[k] end
  end
  for i = 1, #places do
    local upto = 1 + math.floor((filler - 1) * (i - 1) / (#places - 1))
    add(ids, used + 1, upto)
    add(questions[i], 1, #questions[i])
    add(answers[i].ids, 1, #answers[i].ids)
    used = upto
  end
  for k = 0, #places - 1 do  -- in another order than that of depths
    local i = 7 * k % #places + 1
    add(questions[i], 1, #questions[i])
    answers[i].at = #planted - 1
    add(answers[i].ids, 1, #answers[i].ids)
  end
  return { ids = planted, answers = answers }
end

-- For quality.run: {[name] = {found = , logprob = lists by depth, bytes =}}.
function needle.document(model, ids, types)
  local planted, found = needle.plant(model.tokenizer, ids), {}
  local wanted, targets, owner = {}, {}, {}
  for i, answer in ipairs(planted.answers) do
    for k = 1, #answer.ids - 1 do owner[answer.at + k - 1] = { i, answer.ids[k] } end  -- but for the end of the line
  end
  for position = 0, #planted.ids - 1 do
    if owner[position] then wanted[#wanted + 1], targets[#targets + 1] = position, owner[position][2] end
  end
  for _, kind in ipairs(types) do
    local figures = { found = {}, logprob = {} }
    for i = 1, #places do figures.found[i], figures.logprob[i] = 1, 0 end
    figures.bytes = kind.score(function(kv)
      local scorer = scoring.new(model, { tokens = #planted.ids, kv = kv })
      scorer:run(planted.ids, wanted, function(logits, first)
        local these = {}
        for k = 1, logits:shape()[1] do these[k] = targets[first + k - 1] end
        for k, row in ipairs(q.logits.logprobs(logits, these, { top = 1 })) do
          local i = owner[wanted[first + k - 1]][1]
          figures.logprob[i] = figures.logprob[i] + row.logprob
          if row.top[1].id ~= these[k] then figures.found[i] = 0 end
        end
      end)
      scorer:free()
    end)
    found[kind.name] = figures
  end
  return found
end

-- Rows of a table: name, the share that is found in all and by depth, and how much more likely than under the first
-- type an answer is. Intervals are over documents.
function needle.rows(types, documents)
  local columns, rows = { "type", "found, %", "nats of an answer, less the first's" }, {}
  for i = 1, #places do columns[#columns + 1] = ("at %.0f %%"):format(100 * (i - 1) / (#places - 1)) end
  local function mean(list)
    local sum = 0
    for _, x in ipairs(list) do sum = sum + x end
    return sum / #list
  end
  for t, kind in ipairs(types) do
    local all, off, row = {}, {}, { kind.name }
    for d, figures in ipairs(documents) do
      local one, first = figures[kind.name], figures[types[1].name]
      all[d], off[d] = 100 * mean(one.found), mean(one.logprob) - mean(first.logprob)
      for i = 1, #places do row[3 + i] = (row[3 + i] or 0) + 100 * one.found[i] / #documents end
    end
    row[2] = ("%.1f (%.1f to %.1f)"):format(statistics.interval(all))
    row[3] = t > 1 and ("%+.4f (%+.4f to %+.4f)"):format(statistics.interval(off)) or ""
    for i = 4, #row do row[i] = ("%.0f"):format(row[i]) end
    rows[t] = row
  end
  return columns, rows
end

return needle
