-- Learns a byte-level BPE tokenizer.
--   qeng recipes/train_tokenizer.lua --data a.txt,b.jsonl --vocab 32000 --out tokenizer

local q = require "qeng"

local opt = q.options {
  "Learns a byte-level BPE vocabulary from text, JSONL or JSON files; qeng and Hugging Face load the folder --out.",
  rest = "files",
  { "data", nil, "files, folders or patterns as 'data/*.txt', with commas between; also as words", kind = "input" },
  { "vocab", 32000, "ids in all: 256 bytes, merges, special tokens", min = 256 },
  { "out", "tokenizer", "output folder", kind = "folder", files = { "tokenizer.json", "tokenizer_config.json" } },
  { "pattern", "qwen2", "how text is cut before merging",
    choices = { "qwen2", "qwen3.5", "llama3", "cl100k", "o200k", "tekken", "gpt2" } },
  { "nfc", true, "normalise text to form C first" },
  { "specials", { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, "special tokens" },
  { "eos", "<|im_end|>", "the special token that ends an answer (\"\": none)" },
  { "pad", "<|endoftext|>", "the special token of padding (\"\": none)" },
  { "threads", 0, "threads that count (0: this process's cores)", min = 0 },
}

local files = opt.files
if opt.data then table.insert(files, 1, opt.data) end
if #files == 0 then q.error("usage", "which texts? --data FILES") end
local tokenizer, made = q.train_tokenizer {
  files = q.data_files(files), vocab = opt.vocab, out = opt.out, pattern = opt.pattern, nfc = opt.nfc,
  threads = opt.threads, specials = opt.specials, eos = opt.eos ~= "" and opt.eos or nil,
  pad = opt.pad ~= "" and opt.pad or nil,
}
print(("%s: %d ids from %.1f MB in %.1f s"):format(opt.out, made.ids, made.bytes / 1e6, made.seconds))
if made.ids < opt.vocab then
  print(("fewer than the %d asked for: no pair of tokens occurs twice any more"):format(opt.vocab))
end
local sample = "The quick brown fox jumps over 123 lazy dogs."
print(("%d tokens: %s"):format(#tokenizer:encode(sample), sample))
