-- Shows the records of a packet dataset, decoded, the trained part coloured.
--   qeng recipes/inspect.lua FILE --tokenizer DIR

local marked = require "qeng.data.marked"
local q = require "qeng"
local verify = require "qeng.data.verify"

local opt = q.options {
  "Shows a .qubgpu file: totals, and records decoded with the trained part in colour (between >> and << where\n" ..
    "there is none). Of bare frames (.ndp, or - for standard input): totals and damage.",
  positional = { "file" },
  { "file", nil, "the dataset; also as the first word", required = true },
  { "tokenizer", "", "to decode: model folder, tokenizer.json, .tiktoken or SentencePiece model" },
  { "first", 0, "number of the first record shown", min = 0 },
  { "count", 3, "records shown", min = 0 },
  { "verify", false, "check every frame, every block hash and the index; exit status 1 if damaged" },
  { "crc", "ccitt", "of bare frames: their CRC variant", choices = { "ccitt", "xmodem" } },
}
if opt.file == "-" or opt.file:match "%.ndp$" then return verify.frames(opt.file, opt.crc) end

local file = q.ndp.open(opt.file)
local meta = file:meta()
local tokenizer = opt.tokenizer ~= "" and q.tokenizer(opt.tokenizer) or nil
if tokenizer and meta.tokenizer_hash and meta.tokenizer_hash ~= tokenizer:hash() then
  q.error("value", ("%s was made with tokenizer %s, not this one"):format(opt.file, tostring(meta.tokenizer)))
end
print(("%s: %d records, tokenizer %s, template %s"):format(opt.file, file:records(), tostring(meta.tokenizer),
  tostring(meta.template)))

local function show_payload(record)
  local value, kind = file:payload(record)
  if not kind then return "(damaged)" end
  if kind == "utf8" then return value end
  if kind == "meta" then return q.json.encode(value) end
  local more = #value > 16 and (" ... of %d"):format(#value) or ""
  return table.concat(value, " ", 1, math.min(16, #value)) .. more
end

local function show_document(record)
  local tokens, mask = file:read(record)
  return tokens and marked.text(tokens, mask, tokenizer) or "(damaged)"
end

for record = opt.first, math.min(opt.first + opt.count, file:records()) - 1 do
  local info = file:info(record)
  local to = ("source 0x%02x, destination 0x%02x"):format(info.src, info.dst)
  if info.tokens > 0 then
    print(("--- record %d: %d tokens, %d trained, %s"):format(record, info.tokens, info.loss_tokens, to))
    print(show_document(record))
  else
    print(("--- record %d: %s, %d bytes stored, %s"):format(record, info.type, info.bytes, to))
    print(show_payload(record))
  end
end

if opt.verify then verify.file(file, opt.file) end
