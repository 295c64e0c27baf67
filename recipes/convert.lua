-- Writes text data as a packet dataset:  qeng recipes/convert.lua IN OUT.qubgpu --tokenizer DIR

local q = require "qeng"

local opt = q.options {
  "Converts JSONL or a JSON array (messages, prompt/completion, text, alpaca, sharegpt) to packets: convert.lua IN OUT.qubgpu",
  positional = { "input", "output" },
  input = { nil, "the data; also as the first word", required = true, order = 1 },
  output = { nil, "the dataset; also as the second word", required = true, order = 2 },
  tokenizer = { nil, "model folder, tokenizer.json, .tiktoken or SentencePiece model", required = true, order = 3 },
  template = { "auto", "chat template", choices = { "auto", "chatml", "model" }, order = 4 },
  system = { nil, "system message where a conversation has none (\"\": none)", order = 5 },
  max_bad = { 0.01, "share of bad records that is an error", min = 0, max = 1, order = 6 },
}

local counts = q.convert(opt.input, opt.output, {
  tokenizer = q.tokenizer(opt.tokenizer), template = opt.template, max_bad = opt.max_bad,
  system = opt.system == "" and false or opt.system,
})
print(("%s: %d records, %d tokens, %d trained, %d bad"):format(opt.output, counts.records, counts.tokens, counts.targets, counts.bad))
