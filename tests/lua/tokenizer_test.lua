-- q.tokenizer and q.train_bpe: a small vocabulary learnt, read back, and used.
local q = require "qeng"

local out = os.tmpname()
q.fs.remove(out)
local texts = {}
for i = 1, 50 do texts[i] = "the cat sat on the mat, the cat sat on the hat " .. i end
q.train_bpe(texts, { vocab = 270, specials = { "<|endoftext|>", "<|im_end|>" }, out = out })
local t = q.tokenizer(out)
assert(t:vocab_size() == 270 and t:id "<|im_end|>" == 269 and t:id "<|nothing|>" == nil)
assert(t:is_special(269) and not t:is_special(0) and t:bytes(269) == "<|im_end|>")

local text = "the cat <|im_end|> h\195\169"
local plain, special = t:encode(text), t:encode(text, { special = true })
assert(t:decode(plain) == text and t:decode(special) == text and #special < #plain)
assert(#t:encode "the cat sat on the mat" < 20)
assert(t:decode(special, { skip_special = true }) == "the cat  h\195\169")
assert(#t:hash() == 16 and t:hash():match "^%x+$" and q.tokenizer(out .. "/tokenizer.json"):hash() == t:hash())
local info = t:info()
assert(type(info.name) == "string" and info.add_bos == false)

local function refused(pattern, fn, ...)
  local _, err = q.try(fn, ...)
  assert(err and err.message:match(pattern), tostring(err))
end
refused("token 270 is outside the vocabulary", t.bytes, t, 270)
refused("outside the vocabulary", t.is_special, t, -1)
refused("270", t.decode, t, { 270 })
refused("element 2: integer expected", t.decode, t, { 1, "x" })
refused("did you mean 'special'", t.encode, t, "x", { specail = true })
refused("nothing", q.tokenizer, out .. "/nothing")
refused("vocab", q.train_bpe, texts, { specials = {}, out = out })

-- Batches: the ids of encode, whatever the threads; decode_batch takes them, or plain lists.
local documents = { text, "", "the cat", "<|im_end|>" }
for i = 1, 600 do documents[#documents + 1] = ("the hat %d "):format(i):rep(i % 7) end
for threads = 1, 3 do
  local batch = t:encode_batch(documents, { special = true, threads = threads })
  assert(#batch == #documents)
  local total = 0
  for i, document in ipairs(documents) do
    local ids = t:encode(document, { special = true })
    assert(table.concat(batch:ids(i), " ") == table.concat(ids, " "), document)
    total = total + #ids
  end
  assert(batch:tokens() == total)
  local texts_again = t:decode_batch(batch, { threads = threads })
  for i, document in ipairs(documents) do assert(texts_again[i] == document) end
end
assert(#t:encode_batch {} == 0 and #t:decode_batch {} == 0)
assert(t:decode_batch({ special, {} }, { skip_special = true })[1] == "the cat  h\195\169")
refused("document 1 of a batch of 0", function() return t:encode_batch({}):ids(1) end)
refused("element 2: string expected, got a number", t.encode_batch, t, { "a", 2 })
refused("table of strings expected", t.encode_batch, t, "a")
refused("outside the vocabulary", t.decode_batch, t, { { 1 }, { 270 } })

-- A tokenizer learned from files is that learned from their texts, for any number of threads.
q.fs.write(out .. "/a.txt", "plain lines\nof text\n" .. ("more of it, and more\n"):rep(50))
q.fs.write(out .. "/b.jsonl", q.json.encode { messages = { { role = "user", content = texts[1] } } } .. "\n\n" ..
  q.json.encode { text = texts[2] } .. "\n")
q.fs.write(out .. "/c.json", q.json.encode { { instruction = texts[3], output = "done" } })
local files = { out .. "/a.txt", out .. "/b.jsonl", out .. "/c.json" }
local first
for threads = 1, 2 do
  local learned, made = q.train_tokenizer { files = files, vocab = 280, specials = { "<eos>" }, eos = "<eos>",
    out = out .. "/learned", threads = threads }
  assert(made.ids == 280 and learned:vocab_size() == 280 and learned:info().eos == 279 and
    #learned:encode "more of it" <= 5)
  first = first or q.fs.read(out .. "/learned/tokenizer.json")
  assert(q.fs.read(out .. "/learned/tokenizer.json") == first)
end
local trainer = q.bpe_trainer { pattern = "o200k", nfc = false }
trainer:add(texts)
assert(trainer:write { vocab = 270, specials = {}, out = out .. "/o200k" } == 270 and trainer:bytes() > 2000)
assert(q.tokenizer(out .. "/o200k"):decode(q.tokenizer(out .. "/o200k"):encode(text)) == text)
refused("unknown pattern cat; there are qwen2, qwen3.5, llama3, cl100k, o200k, tekken, gpt2", q.bpe_trainer,
  { pattern = "cat" })
refused("not among the special tokens", q.train_tokenizer,
  { files = files, vocab = 300, specials = {}, eos = "<e>", out = out })
refused("b.jsonl:1: not JSON", function()
  q.fs.write(out .. "/b.jsonl", "{\n")
  q.train_tokenizer { files = files, vocab = 300, specials = {}, out = out }
end)
q.fs.remove(out)
print "tokenizer: ok"
