-- Datasets of packets made of others, without tokenizing again: records are copied as stored, and each is checked.
-- Damaged records are named, counted and left out. If they are more than max_damaged (0.01) of all, that is an error
-- and nothing is written. All functions return {records=, damaged=} of what was read, with `parts` if they write
-- several files.

local options = require "qeng.console.options"
local output = require "qeng.console.output"
local progress = require "qeng.console.progress"
local q = require "qeng.core"

local packets = {}

options.set("packets", {
  { "crc", "", "CRC variant written (default: as the first dataset has)", choices = { "ccitt", "xmodem" } },
  { "max_damaged", 0.01, "share of damaged records that is an error", min = 0, max = 1 },
  { "overwrite", false, "write also over a file that is no dataset, or is read here" },
})

packets.sources = {
  text_corpus = 0x01, code_repo = 0x02, chat = 0x03, instruction = 0x04, gradient = 0x05, activation = 0x06,
  kv_cache = 0x07, synthetic = 0x08,
}
packets.destinations = {
  all = 0x00, embedding = 0x01, attention = 0x02, ffn = 0x03, norm = 0x04, lora = 0x05, lm_head = 0x06,
}

-- { "chat", "0x42" } to { [0x03] = true, [0x42] = true }. names: one of the two tables above. nil for no words.
function packets.numbers(words, names)
  if #words == 0 then return nil end
  local set = {}
  for _, word in ipairs(words) do
    local number = names[word] or tonumber(word)
    if not number or number < 0 or number > 255 or number ~= math.floor(number) then
      local known = {}
      for name in pairs(names) do known[#known + 1] = name end
      table.sort(known)
      q.error("usage", ("%s: neither a number from 0 to 255 nor one of %s"):format(word, table.concat(known, ", ")))
    end
    set[number] = true
  end
  return set
end

-- part.qubgpu -> part-NAME.qubgpu
local function part_name(path, name)
  local stem, extension = path:match "^(.*)(%.[^./]*)$"
  return ("%s-%s%s"):format(stem or path, name, extension or "")
end

local function same(a, b)
  return q.json.encode(a) == q.json.encode(b)
end

-- The meta data of a dataset made of these: what all agree on, the sources of all, and under "merged" where they
-- differ. Datasets of different tokenizers are refused.
function packets.merge_meta(files, paths)
  local meta, merged, sources, seen = {}, {}, {}, {}
  local first = files[1]:meta()
  for i, file in ipairs(files) do
    local own = file:meta()
    for _, key in ipairs { "tokenizer_hash", "vocab_size" } do
      if own[key] ~= first[key] then
        q.error("value", ("%s has %s %s, %s has %s: datasets of different tokenizers do not mix; convert one of them "
          .. "again"):format(paths[1], key, tostring(first[key]), paths[i], tostring(own[key])))
      end
    end
    for _, source in ipairs(type(own.sources) == "table" and own.sources or {}) do
      local text = q.json.encode(source)
      if not seen[text] then seen[text] = true; sources[#sources + 1] = source end
    end
  end
  for key, value in pairs(first) do
    local agreed = key ~= "counts" and key ~= "sources" and key ~= "merged"
    for _, file in ipairs(files) do agreed = agreed and same(file:meta()[key], value) end
    if agreed then meta[key] = value end
  end
  for i, file in ipairs(files) do
    local own = { file = paths[i] }
    for key, value in pairs(file:meta()) do
      if meta[key] == nil and key ~= "counts" and key ~= "sources" then own[key] = value end
    end
    if next(own, next(own)) then merged[#merged + 1] = own end
  end
  if #sources > 0 then meta.sources = sources end
  if #merged > 0 then meta.merged = merged end
  return meta
end

local function open_all(paths)
  if #paths == 0 then q.error("usage", "no dataset given to read") end
  local files = {}
  for i, path in ipairs(paths) do files[i] = q.ndp.open(path) end
  return files
end

-- Copies every record for which route(info, record, file) names a writer. The caller makes the writers. Here all are
-- finished, or all abandoned.
local function copy(files, paths, writers, route, opt)
  local speak, counts, total = progress.new(), { records = 0, damaged = 0, copied = 0 }, 0
  for _, file in ipairs(files) do total = total + file:records() end
  local ok, why = pcall(function()
    for i, file in ipairs(files) do
      for record = 0, file:records() - 1 do
        local info = file:info(record)
        local writer = route(info, record, file)
        counts.records = counts.records + 1
        if writer and writer:copy(file, record) then
          counts.copied = counts.copied + 1
        elseif writer then
          counts.damaged = counts.damaged + 1
          if counts.damaged <= 20 then
            speak:say(("%s: record %d (source 0x%02x) is damaged; left out"):format(paths[i], record, info.src))
          end
        end
        if counts.records % 4096 == 0 then speak:line(("%d of %d records"):format(counts.records, total)) end
      end
    end
    if counts.damaged > (opt and opt.max_damaged or 0.01) * math.max(total, 1) then
      q.error("format", ("%d of %d records are damaged; nothing was written (max_damaged allows more)"):format(
        counts.damaged, total))
    end
    for _, writer in ipairs(writers) do writer:finish() end
  end)
  speak:finish()
  if ok then return counts end
  for _, writer in ipairs(writers) do q.try(writer.abandon, writer) end
  error(why, 0)
end

local function create(path, files, paths, opt)
  opt = opt or {}
  output.file(path, { holds = "qubgpu", reads = not opt.grows and paths or nil, overwrite = opt.overwrite or false })
  local crc = opt.crc and opt.crc ~= "" and opt.crc or files[1]:crc()
  return q.ndp.create(path, { meta = packets.merge_meta(files, paths), crc = crc })
end

-- Merges several datasets into one, in order. opt, here and below: crc ("ccitt", "xmodem"; default: the first file's),
-- max_damaged, overwrite (also a file that is read, or is no dataset).
function packets.merge(out, paths, opt)
  local files = open_all(paths)
  local writer = create(out, files, paths, opt)
  return copy(files, paths, { writer }, function() return writer end, opt)
end

-- Adds datasets to one that exists. It is replaced as a whole when all is written.
function packets.append(path, more, opt)
  return packets.merge(path, { path, unpack(more) }, setmetatable({ grows = true }, { __index = opt }))
end

-- Keeps records that meet every condition that is given: opt.sources and opt.destinations (sets of numbers),
-- opt.min_tokens, opt.max_tokens, opt.where(info, record, file).
function packets.filter(path, out, opt)
  local files = open_all { path }
  local writer = create(out, files, { path }, opt)
  return copy(files, { path }, { writer }, function(info, record, file)
    local keep = (not opt.sources or opt.sources[info.src]) and (not opt.destinations or opt.destinations[info.dst])
      and info.tokens >= (opt.min_tokens or 0) and info.tokens <= (opt.max_tokens or math.huge)
      and (not opt.where or opt.where(info, record, file))
    return keep and writer or nil
  end, opt)
end

-- How many records each share gets. Together they are exactly all.
local function portions(shares, total)
  local sum, before, counts = 0, 0, {}
  for _, share in ipairs(shares) do
    if not (share > 0) then q.error("usage", ("shares are numbers above 0, not %s"):format(tostring(share))) end
    sum = sum + share
  end
  local done = 0
  for i, share in ipairs(shares) do
    before = before + share
    local upto = i == #shares and total or math.floor(total * before / sum + 0.5)
    counts[i], done = upto - done, upto
  end
  return counts
end

-- Splits into files named after `out` (out-1-of-2.qubgpu, or out-0x03.qubgpu). It takes one of opt.shares ({0.9, 0.1}:
-- records drawn at random by opt.seed, in their order), opt.count (records in a file, in order) and opt.by_source.
function packets.split(path, out, opt)
  local files, paths = open_all { path }, { path }
  local file, writers, names = files[1], {}, {}
  local function part(name)
    names[#names + 1] = part_name(out, name)
    writers[#writers + 1] = create(names[#names], files, paths, opt)
    return writers[#writers]
  end
  local route
  if opt.by_source then
    local of = {}
    route = function(info)
      of[info.src] = of[info.src] or part(("0x%02x"):format(info.src))
      return of[info.src]
    end
  elseif opt.shares then
    -- Selection sampling (Knuth, volume 2, 3.4.2, algorithm S): each part gets exactly its number.
    local left, waiting, state = portions(opt.shares, file:records()), file:records(), (opt.seed or 0) % 2147483646 + 1
    for i = 1, #left do part(("%d-of-%d"):format(i, #left)) end
    for _ = 1, 8 do state = state * 16807 % 2147483647 end  -- the first draws of small seeds are alike
    route = function()
      state = state * 16807 % 2147483647
      local draw, i = state / 2147483647 * waiting, 1
      while i < #left and draw >= left[i] do draw, i = draw - left[i], i + 1 end
      while left[i] == 0 do i = i > 1 and i - 1 or #left end
      left[i], waiting = left[i] - 1, waiting - 1
      return writers[i]
    end
  elseif opt.count then
    local parts = math.max(1, math.ceil(file:records() / opt.count))
    for i = 1, parts do part(("%d-of-%d"):format(i, parts)) end
    route = function(_, record) return writers[math.floor(record / opt.count) + 1] end
  else
    q.error("usage", "split by what? shares, count or by_source")
  end
  local counts = copy(files, paths, writers, route, opt)
  counts.parts = names
  return counts
end

-- Writes several datasets to so many files with nearly equal numbers of tokens, in order.
function packets.reshard(out, paths, shards, opt)
  local files, writers, names, tokens, done = open_all(paths), {}, {}, 0, 0
  for _, file in ipairs(files) do
    for record = 0, file:records() - 1 do tokens = tokens + file:info(record).tokens end
  end
  for i = 1, shards do
    names[i] = part_name(out, ("%d-of-%d"):format(i, shards))
    writers[i] = create(names[i], files, paths, opt)
  end
  local counts = copy(files, paths, writers, function(info)
    local writer = writers[math.min(shards, math.floor(done / math.max(tokens, 1) * shards) + 1)]
    done = done + info.tokens
    return writer
  end, opt)
  counts.parts = names
  return counts
end

-- Writes datasets as bare frames. out "-" is standard output.
function packets.export(out, paths, opt)
  local files = open_all(paths)
  output.file(out, { holds = "ndp", reads = paths, overwrite = opt and opt.overwrite or false })
  local writer = q.ndp.frame_writer(out, { crc = opt and opt.crc ~= "" and opt.crc or files[1]:crc() })
  return copy(files, paths, { writer }, function() return writer end, opt)
end

-- Makes a dataset of bare frames. Damage is left out and counted. opt: crc (of the frames and the dataset), meta,
-- max_damaged.
function packets.import(out, path, opt)
  opt = opt or {}
  output.file(out, { holds = "qubgpu", reads = { path }, overwrite = opt.overwrite or false })
  local crc = opt.crc ~= "" and opt.crc or "ccitt"
  local scanner = q.ndp.scan(path, { crc = crc })
  local writer, counts = q.ndp.create(out, { crc = crc, meta = opt.meta or { sources = { path } } }), { records = 0 }
  local ok, why = pcall(function()
    for record in function() return scanner:next() end do
      local to = { src = record.src, dst = record.dst }
      if record.tokens then
        writer:add(record.tokens, record.mask, to)
      else
        writer:payload(record.type, record.payload, to)
      end
      counts.records = counts.records + 1
    end
    local errors = scanner:errors()
    counts.damaged = errors.total
    if errors.total > (opt.max_damaged or 0.01) * (counts.records + errors.total) then
      q.error("format", ("%s: %d frames are damaged (%d bytes skipped) beside %d records that are whole; nothing was "
        .. "written. Is it of the other CRC variant?"):format(path, errors.total, errors.skipped_bytes, counts.records))
    end
    writer:finish()
  end)
  if ok then return counts end
  q.try(writer.abandon, writer)
  error(why, 0)
end

return packets
