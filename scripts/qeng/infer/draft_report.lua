-- What guessing ahead brings: the same greedy texts with and without, and their speed.

local q = require "qeng.core"

local draft_report = {}

-- The part of a document, rows first .. last of targets, that comes before its longest answer: all tokens before the
-- longest run of trained ones. Where that begins at once, as in plain text, its first half comes too.
local function before_answer(targets, first, last)
  local best, begin, length = first, first, 0
  for t = first, last + 1 do
    if t > last or targets[t] < 0 then
      if t - begin > length then best, length = begin, t - begin end
      begin = t + 1
    end
  end
  return best > first + 2 and best or best + math.floor(length / 2)
end

-- The beginnings of up to `count` documents of batches (train/held_out.lua), of up to `most` tokens.
function draft_report.prompts(batches, micro_batch, count, most)
  local prompts = {}
  while #prompts < count do
    local batch = batches:next()
    if not batch then break end
    batch:load(micro_batch)
    local ids, targets = micro_batch.tokens:table(), micro_batch.targets:table()
    local cu = micro_batch.cu_q:table()
    for d = 1, #cu - 1 do
      if cu[d + 1] - cu[d] > 3 and #prompts < count then
        local last = before_answer(targets, cu[d] + 1, cu[d + 1])
        prompts[#prompts + 1] = { unpack(ids, math.max(cu[d] + 1, last - most + 1), last) }
      end
    end
  end
  return prompts
end

-- The `count` tokens of so many that batches train most often, ascending; of equally frequent ones the first.
function draft_report.most_frequent(batches, micro_batch, count, vocab)
  local counts, ids = {}, {}
  for id = 0, vocab - 1 do counts[id], ids[id + 1] = 0, id end
  for batch in function() return batches:next() end do
    batch:load(micro_batch)
    for _, id in ipairs(micro_batch.targets:table()) do
      if id >= 0 then counts[id] = counts[id] + 1 end
    end
  end
  table.sort(ids, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  for i = #ids, count + 1, -1 do ids[i] = nil end
  table.sort(ids)
  return ids
end

-- Texts of all prompts, tokens a second of the decoding, and the engine's figures.
local function texts_of(model, prompts, batch, setup, max_tokens)
  setup.max_batch = batch
  local engine, texts, given, seconds = model:engine(setup), {}, 0, 0
  for first = 1, #prompts, batch do
    local list = {}
    for i = first, math.min(#prompts, first + batch - 1) do
      list[#list + 1] = engine:submit { ids = prompts[i], max_tokens = max_tokens, temperature = 0 }
    end
    local before, began = 0, nil
    while engine:step() do
      local tokens, all = 0, true
      for _, r in ipairs(list) do tokens, all = tokens + #r.output, all and #r.output > 0 end
      if all and not began then before, began = tokens, q.time() end
      if began then
        given, seconds = given + tokens - before, seconds + q.time() - began
        before, began = tokens, q.time()
      end
    end
    for _, r in ipairs(list) do
      if r.error then error(r.error, 0) end
      texts[#texts + 1] = table.concat(r.output, " ")
    end
  end
  local stats = engine:stats()
  engine:close()
  return texts, given / math.max(seconds, 1e-9), stats
end

-- Measures with batches of these sizes. opt: batches ({1, 8}), max_tokens (64), draft, draft_vocab and draft_always as
-- of the engine, rounds (1; the best of each counts). Returns {{batch =, plain =, drafted = tokens a second, length =
-- tokens a step that guesses, guesses = as Engine:stats has them}...}. It is an error if a text differs.
function draft_report.measure(model, prompts, opt)
  local rows = {}
  for _, batch in ipairs(opt.batches or { 1, 8 }) do
    local row = { batch = batch, plain = 0, drafted = 0 }
    for _ = 1, opt.rounds or 1 do
      local texts, speed = texts_of(model, prompts, batch, {}, opt.max_tokens or 64)
      row.plain = math.max(row.plain, speed)
      local drafted, faster, stats = texts_of(model, prompts, batch, {
        draft = opt.draft or "mtp", draft_vocab = opt.draft_vocab, draft_always = opt.draft_always,
      }, opt.max_tokens or 64)
      row.drafted, row.guesses = math.max(row.drafted, faster), stats.guesses
      for i, text in ipairs(texts) do
        if drafted[i] ~= text then q.error("value", ("drafts: text %d differs with guesses"):format(i)) end
      end
    end
    local right = 0
    for _, at in ipairs(row.guesses) do right = right + at[2] end
    row.length = row.guesses[1] and 1 + right / row.guesses[1][1] or 1
    rows[#rows + 1] = row
  end
  return rows
end

-- The same as lines of text.
function draft_report.lines(rows)
  local lines = {}
  for i, row in ipairs(rows) do
    local shares = {}
    for k, at in ipairs(row.guesses) do shares[k] = ("%.0f %%"):format(100 * at[2] / at[1]) end
    local right = #shares > 0 and table.concat(shares, ", ") or "none made"
    lines[i] = ("batch of %d: %.1f tokens/s, with guesses %.1f (%.2f times); %.2f tokens a step with guesses; right: "
      .. "%s"):format(row.batch, row.plain, row.drafted, row.drafted / row.plain, row.length, right)
  end
  return lines
end

return draft_report
