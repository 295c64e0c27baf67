-- Text data to packets: JSONL or one JSON array of records, rendered (chat.lua) and written as a .qubgpu dataset.

local chat = require "qeng.chat"
local progress = require "qeng.progress"
local q = require "qeng.core"

local data = {}

-- The records of a file with their place for messages: for record, place in data.records(path). JSONL is read line by line.
function data.records(path)
  local file, why = io.open(path, "r")
  if not file then q.error("io", ("%s: %s"):format(path, (why or "cannot be read"):gsub("^.-: ", ""))) end
  local head = file:read(4096) or ""
  file:seek("set", 0)
  if head:match("^%s*%[") then
    local text = file:read("*a")
    file:close()
    local ok, list = pcall(q.json.decode, text)
    if not ok then q.error("format", ("%s: %s"):format(path, tostring(list.message or list))) end
    local i = 0
    return function()
      i = i + 1
      if list[i] ~= nil then return list[i], ("%s: record %d"):format(path, i) end
    end
  end
  local number = 0
  return function()
    while true do
      local line = file:read("*l")
      if not line then file:close(); return nil end
      number = number + 1
      if line:find("%S") then
        local ok, record = pcall(q.json.decode, line)
        local place = ("%s:%d"):format(path, number)
        if not ok then return { __bad = "not JSON: " .. tostring(record.message or record) }, place end
        return record, place
      end
    end
  end
end

-- Converts `from` to the dataset `to`. opt: tokenizer, template, system, max_bad (share of bad records that is an error,
-- 0.01), source. Returns {records=, tokens=, targets=, bad=}. Bad records are told with their place and left out.
function data.convert(from, to, opt)
  local tokenizer = opt.tokenizer
  local template = chat.template(tokenizer, opt.template, opt.system)
  local speak = progress.new()
  local info = tokenizer:info()
  local writer = q.ndp.create(to, { meta = {
    tokenizer = info.name, tokenizer_hash = tokenizer:hash(), vocab_size = tokenizer:vocab_size(), template = template.name,
    sources = { from }, system = template.default_system,
  } })
  local counts = { records = 0, tokens = 0, targets = 0, bad = 0, seen = 0 }
  local ok, why = pcall(function()
    for record, place in data.records(from) do
      counts.seen = counts.seen + 1
      local tokens, mask = q.try(function()
        if record.__bad then q.error("format", record.__bad) end
        return template:encode(chat.normalize(record))
      end)
      if tokens and #tokens > 0 then
        local targets = 0
        for i = 1, #mask do targets = targets + mask[i] end
        local src = record.text and 0x01 or (record.instruction or record.prompt) and 0x04 or 0x03
        writer:add(tokens, targets < #mask and mask or nil, { src = src })
        counts.records, counts.tokens, counts.targets = counts.records + 1, counts.tokens + #tokens, counts.targets + targets
      else
        counts.bad = counts.bad + 1
        if counts.bad <= 10 then speak:say(("%s: %s; left out"):format(place, tokens and "empty" or mask.message)) end
      end
      if counts.seen % 500 == 0 then speak:line(("converted %d records, %d tokens"):format(counts.records, counts.tokens)) end
    end
  end)
  speak:finish()
  if not ok then
    writer:abandon()
    error(why, 0)
  end
  if counts.records == 0 or counts.bad > (opt.max_bad or 0.01) * counts.seen then
    writer:abandon()
    q.error("format", ("%s: %d of %d records are bad; nothing was written"):format(from, counts.bad, counts.seen))
  end
  writer:finish()
  return counts
end

-- A dataset to train on: a .qubgpu file, checked against the tokenizer, or text data converted into cache_dir first.
function data.open(path, opt)
  local kind = q.fs.kind(path)
  if not kind then q.error("io", ("data %s: no such file; expected JSONL, a JSON array or a .qubgpu file"):format(path)) end
  local magic = io.open(path, "rb")
  local packed = magic and magic:read(6) == "QUBGPU"
  if magic then magic:close() end
  if not packed then
    q.fs.mkdir(opt.cache_dir)
    local to = opt.cache_dir .. "/data.qubgpu"
    local counts = data.convert(path, to, opt)
    io.stderr:write(("%s: %d records, %d tokens, %d trained, %d bad\n"):format(path, counts.records, counts.tokens, counts.targets, counts.bad))
    path = to
  end
  local file = q.ndp.open(path)
  local meta = file:meta()
  if opt.tokenizer and not opt.any_tokenizer and meta.tokenizer_hash and meta.tokenizer_hash ~= opt.tokenizer:hash() then
    q.error("value", ("%s was made with tokenizer %s (hash %s), the model's is %s (hash %s): convert the data again with --tokenizer of this model")
      :format(path, tostring(meta.tokenizer), tostring(meta.tokenizer_hash), opt.tokenizer:info().name, opt.tokenizer:hash()))
  end
  return file
end

return data
