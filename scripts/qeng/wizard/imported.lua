-- Records of other forms than JSON as JSONL. Packed JSON is unpacked, and Parquet written as JSON: such records stay as
-- they are. Tables and texts (CSV, TSV, text) are read by the converter, as for any training, into tokens that are
-- single bytes, and what it wrote in ChatML is read back as messages.

local data = require "qeng.data"
local q = require "qeng.core"
local records = require "qeng.wizard.records"

local specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }

-- A tokenizer of 256 bytes and the marks of ChatML, in a folder.
local function byte_tokenizer(folder)
  local trainer = q.bpe_trainer { nfc = false }
  trainer:add { " " }
  trainer:write { vocab = 256 + #specials, specials = specials, out = folder }
  return q.tokenizer(folder)
end

-- The record of a list of tokens and their mask.
local function record_of(tokens, mask, tokenizer, start, finish)
  local pieces, messages, trained = {}, {}, false
  for i, id in ipairs(tokens) do
    if id == start then
      pieces, trained = {}, false
    elseif id == finish then
      local role, content = table.concat(pieces):match "^([^\n]*)\n(.*)$"
      local train
      if role == "assistant" and not trained then train = false end
      messages[#messages + 1], pieces = { role = role, content = content, train = train }, {}
    elseif id ~= tokenizer:id "<|endoftext|>" then
      pieces[#pieces + 1], trained = tokenizer:bytes(id), trained or mask[i] == 1
    end
  end
  return #messages > 0 and { messages = messages } or { text = table.concat(pieces) }
end

-- Writes the records of tables and texts to `folder`/records.jsonl. Returns its path. What cannot be read is told and
-- left out.
local function by_tokens(paths, folder)
  local tokenizer = byte_tokenizer(folder)
  local packets, to = folder .. "/records.qubgpu", folder .. "/records.jsonl"
  local counts = data.convert(paths, packets, { tokenizer = tokenizer, template = "chatml", system = false,
    special = "text", max_bad = 1 })
  io.stderr:write(("%s: %s\n"):format(table.concat(paths, ", "), data.summary(counts)))
  local file, out, why = q.ndp.open(packets), io.open(to, "wb")
  if not out then q.error("io", why) end
  local start, finish = tokenizer:id "<|im_start|>", tokenizer:id "<|im_end|>"
  for i = 0, file:records() - 1 do
    local tokens, mask = file:read(i)
    out:write(q.json.encode(record_of(tokens, mask, tokenizer, start, finish)), "\n")
  end
  q.fs.remove(packets)
  local fine, problem = out:close()
  if not fine then q.error("io", problem) end
  return to
end

-- Writes the records of the files at `paths` to files of `folder`, which is made anew. Returns their paths.
return function(paths, folder)
  q.fs.remove(folder)
  q.fs.mkdir(folder)
  local list, others = {}, {}
  for i, path in ipairs(paths) do
    local to = ("%s/%d-%s.jsonl"):format(folder, i, path:match "[^/]*$")
    local text = records.is_named_text(path)
    if not text then q.ndp.unpack(path, to) end
    if not text and records.is_json(to) then
      list[#list + 1] = to
    else
      q.fs.remove(to)
      others[#others + 1] = path
    end
  end
  if #others > 0 then list[#list + 1] = by_tokens(others, folder) end
  return list
end
