-- Shows the records of a packet dataset, decoded, the trained part coloured:  qeng recipes/inspect.lua FILE --tokenizer DIR

local q = require "qeng"

local opt = q.options {
  "Shows a .qubgpu file: totals, and records decoded with the trained part in colour (between >> and << where there is none).",
  positional = { "file" },
  file = { nil, "the dataset; also as the first word", required = true, order = 1 },
  tokenizer = { "", "to decode: model folder, tokenizer.json, .tiktoken or SentencePiece model", order = 2 },
  first = { 0, "number of the first record shown", min = 0, integer = true, order = 3 },
  count = { 3, "records shown", min = 0, order = 4 },
  verify = { false, "check every frame and block hash; exit status 1 if damaged", order = 5 },
}

local file = q.ndp.open(opt.file)
local meta = file:meta()
local tokenizer = opt.tokenizer ~= "" and q.tokenizer(opt.tokenizer) or nil
if tokenizer and meta.tokenizer_hash and meta.tokenizer_hash ~= tokenizer:hash() then
  q.error("value", ("%s was made with tokenizer %s, not this one"):format(opt.file, tostring(meta.tokenizer)))
end
print(("%s: %d records, tokenizer %s, template %s"):format(opt.file, file:records(), tostring(meta.tokenizer), tostring(meta.template)))

local on, off = ">>", "<<"
if q.isatty(1) then on, off = "\27[32m", "\27[0m" end
for record = opt.first, math.min(opt.first + opt.count, file:records()) - 1 do
  local info = file:info(record)
  print(("--- record %d: %d tokens, %d trained, source 0x%02x, destination 0x%02x"):format(record, info.tokens, info.loss_tokens, info.src, info.dst))
  local tokens, mask = file:read(record)
  if not tokens then
    print("(damaged)")
  else
    local parts, trained = {}, false
    for i, id in ipairs(tokens) do
      local now = mask[i] == 1
      if now ~= trained then parts[#parts + 1] = now and on or off end
      trained = now
      parts[#parts + 1] = tokenizer and tokenizer:bytes(id) or id .. " "
    end
    print(table.concat(parts) .. (trained and off or ""))
  end
end

if opt.verify then
  local found = file:verify()
  print(found.ok and "verify: every frame and block is whole" or "verify: damaged")
  if not found.ok then q.error("format", opt.file .. " is damaged: " .. q.json.encode(found)) end
end
