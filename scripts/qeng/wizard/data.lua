-- The step data: what the records are, what is left out of training, and what is held out. The records go to
-- data/train.jsonl and data/held_out.jsonl as they are written; data/left_out.jsonl says why others do not.

local analyze = require "qeng.plan.analyze"
local data = require "qeng.data"
local hub = require "qeng.hub"
local imported = require "qeng.wizard.imported"
local languages = require "qeng.wizard.languages"
local look = require "qeng.wizard.look"
local progress = require "qeng.console.progress"
local q = require "qeng.core"
local records = require "qeng.wizard.records"

local step = {}

local fewest = 8  -- records: fewer tell nothing on what is held out

local function plural(count, noun) return ("%d %s%s"):format(count, noun, count == 1 and "" or "s") end

-- {name = count} as "30 messages, 12 text", the most frequent first.
local function listed(counts)
  local names, parts = {}, {}
  for name in pairs(counts) do names[#names + 1] = name end
  table.sort(names, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a < b
  end)
  for i, name in ipairs(names) do parts[i] = ("%d %s"):format(counts[name], name) end
  return table.concat(parts, ", "), names
end

local function tell(run, found)
  run:say(("%s: %s"):format(plural(found.count, "record"), (listed(found.shapes))))
  local _, reasons = listed(found.reasons)
  for i, reason in ipairs(reasons) do
    if i == 6 then
      run:say(("left out: %d further reasons, in data/left_out.jsonl"):format(#reasons - 5))
      break
    end
    run:say(("left out: %d %s (%s)"):format(found.reasons[reason], reason, found.examples[reason]))
  end
  run:say(found.duplicates > 0 and plural(found.duplicates, "duplicate") .. " of a record before them"
    or "no duplicates")
  if found.asked_again > 0 then
    run:say(("%s asked before, with another answer: such a question may be held out and trained on too"):format(
      plural(found.asked_again, "question")))
  end
  local sizes = found.bytes
  run:say(("bytes of what is said: half of the records up to %d, nine in ten up to %d, the longest %d"):format(
    sizes[math.ceil(#sizes / 2)], sizes[math.ceil(#sizes * 0.9)], sizes[#sizes]))
  run:say("languages, roughly (by script and the commonest words): " .. languages.shares(found.languages))
end

-- The files of records as JSON: those that are, and those of the others' records.
local function as_json(run, paths)
  local list, others = {}, {}
  for _, path in ipairs(paths) do
    if analyze.is_packets(path) then
      q.error("unsupported", ("%s: holds tokens of some model, not records: give what it was made of, or train with "
        .. "recipes/lora_qwen.lua --data"):format(path))
    end
    local to = records.is_json(path) and list or others
    to[#to + 1] = path
  end
  for _, path in ipairs(#others > 0 and imported(others, run:at "imported") or {}) do
    list[#list + 1] = path
    run:say(("%s: records of files that are not JSON, as JSON"):format(path))
  end
  return list
end

-- Asks for the data until they can be read. Returns the files given, those of records as JSON, what was
-- found, and what tells the files from others.
local function choose(run)
  local paths, texts, found, digest
  run:ask {
    name = "data", text = "Which records? A file (JSONL, JSON, Parquet, CSV, text), a folder or a dataset on the hub.",
    check = function(given)
      local speak = progress.new()
      paths = data.inputs(hub.resolve_data(given), speak)
      for i, path in ipairs(paths) do
        run:outside(path)
        paths[i] = q.fs.real(path) or path
      end
      digest = records.digest(paths)
      texts = as_json(run, paths)
      found = look.at(texts, function(count) speak:line(("looking at the records: %d"):format(count)) end)
      speak:finish()
      if found.good < fewest then
        local _, reasons = listed(found.reasons)
        q.error("value", ("%s: %s that can be trained on, of %d; expected %d at least%s"):format(given,
          plural(found.good, "record"), found.count, fewest,
          reasons[1] and (" (%s: %s)"):format(found.examples[reasons[1]], reasons[1]) or ""))
      end
    end,
  }
  return paths, texts, found, digest
end

-- How many records to hold out.
local function share(good)
  local twentieth, quarter = math.floor(good / 20), math.floor(good / 4)
  return math.max(2, math.min(200, math.max(8, twentieth), quarter))
end

-- Writes the three files. Returns how many records each has.
local function write(run, paths, found, drops, held)
  local put, done = records.writer(run:at "data")
  local i, counts = 0, { train = 0, held_out = 0, left_out = 0 }
  local function to(name, line)
    counts[name] = counts[name] + 1
    put(name .. ".jsonl", line)
  end
  for text, path, number in records.each(paths) do
    i = i + 1
    local why = found.fate[i]
    if why == "duplicate" and not drops then why = held[found.first[i]] and "duplicate of one held out" or true end
    if why == true then
      to(held[i] and "held_out" or "train", text)
    else
      to("left_out", q.json.encode({ place = ("%s:%d"):format(path, number), why = why }, { replace = true }))
    end
  end
  done()
  return counts
end

function step.check(run)
  run:note "seed"
  local paths, texts, found, digest = choose(run)
  tell(run, found)
  local drops = true
  if found.duplicates > 0 then
    drops = run:ask {
      name = "duplicates", text = "What becomes of the duplicates?", default = "drop",
      why = "each counts as another pass over the same text, and one that is held out would be trained on too",
    } == "drop"
  end
  local count = run:ask {
    name = "held_out", text = "How many records are held out for the evaluation?", default = share(found.good),
    why = "a twentieth, from 8 to 200 of them, and at most a quarter",
    check = function(value)
      if value > found.good / 2 then
        q.error("value", ("%d is more than half of the %d records"):format(value, found.good))
      end
    end,
  }
  q.fs.remove(run:at "data")
  q.fs.mkdir(run:at "data")
  run:leave("data", "imported")
  local held = look.draw(found.count, function(i) return found.fate[i] == true end, count, run.opt.seed)
  local counts, said = write(run, texts, found, drops, held), 0
  for _, bytes in ipairs(found.bytes) do said = said + bytes end
  run:say(("%s: %d records to train on, %d held out, %d left out"):format(run:at "data", counts.train, counts.held_out,
    counts.left_out))
  return { files = q.json.array(paths), digest = digest, records = counts.train,
    held_out = counts.held_out, left_out = counts.left_out, said = said }
end

-- Refuses data that are not what the step read.
function step.check_source(run)
  local found = run.found.data
  for _, path in ipairs(found.files) do
    if q.fs.kind(path) ~= "file" then
      return run:say(("note: %s is not there any more; the run goes on with its own copy in %s"):format(path,
        run:at "data"))
    end
  end
  if records.digest(found.files) ~= found.digest then
    q.error("value", ("%s: not what was read at the step data: give --redo data to start again from there, "
      .. "or another --out"):format(table.concat(found.files, ", ")))
  end
end

return step
