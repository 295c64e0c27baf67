-- Writes text data as a packet dataset.
--   qeng recipes/convert.lua IN... OUT.qubgpu --tokenizer DIR

local q = require "qeng"

local opt = q.options {
  "Converts JSONL, JSON arrays, CSV or plain text, also .gz or .zst, to packets: convert.lua IN... OUT.qubgpu.\n" ..
    "Records are messages (with tools and reasoning), conversations, prompt/completion, instruction/output or text.",
  rest = "words",
  { "input", nil, "the data: files, folders or patterns as 'data/*.jsonl', with commas between, or - for standard "
    .. "input; also as words" },
  { "output", nil, "the dataset; also as the last word, which ends in .qubgpu then" },
  { "tokenizer", nil, "model folder, tokenizer.json, .tiktoken or SentencePiece model", required = true },
  { "format", "auto", "of the input", choices = { "auto", unpack((q.ndp.formats())) } },
  { "system", nil, "system message where a conversation has none (\"\": none)" },
  { "turns", "all", "which of the assistant's messages are trained", choices = { "all", "last" } },
  { "max_tokens", 0, "longest record, 0: any", min = 0 },
  { "long", "keep", "what becomes of longer records: whole, left out, split, or their beginning or end kept",
    choices = { "keep", "drop", "split", "truncate", "end" } },
  { "dedupe", false, "leave out records whose tokens and mask were there before (up to 21 bytes of memory a record)" },
  { "source", nil, "SRC of every record: chat, instruction, text, code, synthetic or 0xNN; by default its shape" },
  { "source_field", nil, "field of a record that says its SRC, as a name or number" },
  { "source_names", {}, "numbers of further names: code=0x40,web=0x41", kind = "map" },
  { "destination", 0, "DST of every record, 0: all parameters", min = 0, max = 255 },
  { "max_bad", 0.01, "share of bad records that is an error", min = 0, max = 1 },
  { "max_record", 16, "longest record of the input in MiB", min = 1, max = 1024 },
  { "resume", false, "go on with an interrupted conversion: same input, same options, same result" },
  { "checkpoint", 5, "seconds between points to resume from", min = 0, number = true },
  "data",
  { "threads", 0, "worker threads, 0: one for each core", min = 0, max = 1024 },
  { "overwrite", false, "write also over a file that is no dataset, or is read here" },
}

local inputs = opt.words
if opt.input then table.insert(inputs, 1, opt.input) end
if not opt.output then
  opt.output = table.remove(inputs)
  if not (opt.output or ""):find "%.qubgpu$" then
    q.error("usage", (opt.output or "no words")
      .. ": the last word is the dataset that is written, and ends in .qubgpu: convert.lua IN... OUT.qubgpu")
  end
end
if #inputs == 0 then q.error("usage", "which data? convert.lua IN... " .. opt.output) end

opt.tokenizer = q.tokenizer(opt.tokenizer)
opt.max_tokens = opt.max_tokens > 0 and opt.max_tokens or nil
if opt.system == "" then opt.system = false end
print(("%s: %s"):format(opt.output, q.conversion_summary(q.convert(inputs, opt.output, opt))))
print(q.conversion_sample(opt.output, opt.tokenizer))
