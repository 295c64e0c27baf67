-- Datasets, the .qubgpu files of the root: GET /api/datasets lists them; GET /api/datasets/{name} says what one holds,
-- GET /api/datasets/{name}/records shows records, POST /api/datasets/{name}/verify looks for damage.

local analyze = require "qeng.plan.analyze"
local files = require "qeng.server.files"
local marked = require "qeng.data.marked"
local problem = require "qeng.server.problem"
local q = require "qeng.core"

local most_entries, most_depth = 20000, 8  -- of folders that a list looks through
local most_datasets = 1000
local most_records = 50                    -- in an answer
local most_tokens, most_shown = 2 ^ 17, 2000  -- of a record that is read; of one that is shown
local most_counted = 2 ^ 26                -- bytes of a dataset whose statistics do not hold up the others
local verify_blocks = 16                   -- MiB at a time, for the same reason

-- ---------------------------------------------------------------- files

-- fn's result, or an answer that says what is wrong with the file.
local function of_file(name, path, fn, ...)
  local result, why = q.try(fn, ...)
  if result == nil then problem.raise(422, problem.named(why.message, path, name), "name") end
  return result
end

local function open(call)
  local name = call.params.name
  local path = call.server:inside(name, "name")
  return of_file(name, path, q.ndp.open, path), path
end

-- Calls visit(name) for the datasets of the root, a folder's own before those of folders in it. Links that leave the
-- root, or come back, are left out. False: there are more than it looks at.
local function walk(call, visit)
  local server, seen, entries, found = call.server, {}, 0, 0
  local waiting = { { name = "", depth = 0 } }
  while waiting[1] do
    local folder = table.remove(waiting, 1)
    for _, entry in ipairs(q.try(q.fs.list, server.root .. "/" .. folder.name) or {}) do
      entries = entries + 1
      if entries > most_entries or found == most_datasets then return false end
      if entries % 500 == 0 then call:pause() end
      local name = folder.name .. entry
      local path = q.try(server.inside, server, name, "name")
      local kind = path and not seen[path] and q.fs.kind(path)
      if kind == "dir" and folder.depth < most_depth then
        seen[path], waiting[#waiting + 1] = true, { name = name .. "/", depth = folder.depth + 1 }
      elseif kind == "file" and entry:find "%.qubgpu$" then
        seen[path], found = true, found + 1
        visit(name, path)
      end
    end
  end
  return true
end

-- ---------------------------------------------------------------- records

-- The tokenizer that a dataset was made with, if a served model has it, and that model's name.
local function tokenizer_of(server, file)
  local hash = file:meta().tokenizer_hash
  for _, each in ipairs(hash and server.models or {}) do
    local tokenizer = each.model.tokenizer
    if tokenizer and tokenizer:hash() == hash then return tokenizer, each.name end
  end
end

local function payload_text(file, number)
  local value, kind = file:payload(number)
  if kind == "utf8" then return value end
  if kind == "meta" then return q.json.encode(value, { replace = true }) end
  return kind and table.concat(value, " ", 1, math.min(#value, most_shown))
end

local function record_of(file, number, tokenizer)
  local info = file:info(number)
  local record = {
    record = number, type = info.type, tokens = info.tokens, trained = info.loss_tokens, src = info.src, dst = info.dst,
    source = analyze.source_name(info.src), bytes = info.bytes, spans = q.json.array {},
  }
  if info.tokens > most_tokens or info.bytes > 8 * most_tokens then
    record.cut = true
    return record
  end
  if info.tokens > 0 then
    local tokens, mask = file:read(number)
    record.damaged, record.cut = tokens == nil, info.tokens > most_shown
    if tokens then record.spans = q.json.array(marked.stretches(tokens, mask, tokenizer, most_shown)) end
  else
    local text = payload_text(file, number)
    record.damaged = text == nil
    if text then record.spans[1] = { text = text:sub(1, 4 * most_shown), trained = false } end
    record.cut = text ~= nil and #text > 4 * most_shown
  end
  return record
end

local function integer(call, name, default, most)
  local value = tonumber(call.event.query[name] or default)
  if not value or value < 0 or value > most or value ~= math.floor(value) then
    problem.raise(400, ("Invalid value for '%s': expected an integer of 0 to %.15g."):format(name, most), name)
  end
  return value
end

-- ---------------------------------------------------------------- statistics and damage

-- {tokens of a record at shares of them, bins, counts of all and by source}; nil for a large dataset.
local function statistics(file, tokenizer)
  local totals = file:totals()
  if totals.bytes > most_counted then return q.json.null end
  local found = file:statistics { ends = tokenizer and analyze.ends(tokenizer) or {} }
  local percentiles, sources = {}, {}
  for i, share in ipairs { 0, 0.1, 0.5, 0.9, 0.99, 1 } do
    percentiles[i] = { share = share, tokens = analyze.percentile(found.lengths, share) }
  end
  for src, each in pairs(found.sources) do
    each.src, each.source = src, analyze.source_name(src)
    sources[#sources + 1] = each
  end
  table.sort(sources, function(a, b) return a.src < b.src end)
  return {
    damaged = found.damaged, untrained = found.untrained, duplicates = found.duplicates,
    answers = found.answers, empty_answers = tokenizer and found.empty_answers,
    truncated = tokenizer and found.truncated, percentiles = percentiles, sources = q.json.array(sources),
    bins = q.json.array(#found.lengths > 0 and analyze.histogram(found.lengths, 20) or {}),
  }
end

-- PacketFile:verify in pieces, between which the loop goes on.
local function verify(call, file, path)
  local all, first = { bad_records = 0, bad_blocks = 0, damaged = q.json.array {}, block_offsets = q.json.array {} }, 0
  repeat
    local part = of_file(call.params.name, path, file.verify, file, { first = first, blocks = verify_blocks })
    for _, name in ipairs { "bad_records", "bad_blocks" } do all[name] = all[name] + part[name] end
    for _, name in ipairs { "damaged", "block_offsets" } do
      for _, each in ipairs(part[name]) do
        if #all[name] < 100 then table.insert(all[name], each) end
      end
    end
    first = first + verify_blocks
    all.records, all.blocks, all.bytes = part.records, part.blocks, part.bytes
    if first < all.blocks then call:pause() end
  until first >= all.blocks
  all.ok = all.bad_records == 0 and all.bad_blocks == 0
  return all
end

-- ---------------------------------------------------------------- routes

return function(server)
  server:route("GET", "/api/datasets", function(call)
    local list = {}
    local whole = not server.root or walk(call, function(name, path)
      local file, why = q.try(q.ndp.open, path)
      local totals = file and file:totals() or {}
      list[#list + 1] = {
        name = name, size = files.size(path), records = totals.records, tokens = totals.tokens,
        trained = totals.loss_tokens, problem = not file and problem.named(why.message, path, name) or nil,
      }
      if #list % 10 == 0 then call:pause() end
    end)
    call:reply(200, { datasets = q.json.array(list), more = not whole })
  end, { says = "datasets of the root" })

  server:route("GET", "/api/datasets/{name*}/records", function(call)
    local file = open(call)
    local tokenizer, model = tokenizer_of(server, file)
    local first, count = integer(call, "first", 0, 2 ^ 53), integer(call, "count", 10, most_records)
    local list = {}
    for number = first, math.min(first + count, file:records()) - 1 do
      list[#list + 1] = record_of(file, number, tokenizer)
      if #list < count then call:pause() end
    end
    call:reply(200, { first = first, records = file:records(), tokenizer = model or q.json.null,
      data = q.json.array(list) })
  end, { says = "records of a dataset, and what of them is trained", query = {
    { "first", "integer", min = 0 }, { "count", "integer", min = 0 } } })

  server:route("POST", "/api/datasets/{name*}/verify", function(call)
    call:reply(200, verify(call, open(call)))
  end, { says = "checks every frame, every block and the index of a dataset" })

  server:route("GET", "/api/datasets/{name*}", function(call)
    local file, path = open(call)
    local tokenizer, model = tokenizer_of(server, file)
    local found = of_file(call.params.name, path, statistics, file, tokenizer)
    call:reply(200, {
      name = call.params.name, size = files.size(path), totals = file:totals(), crc = file:crc(), meta = file:meta(),
      tokenizer = model or q.json.null, statistics = found,
    })
  end, { says = "what a dataset holds" })
end
