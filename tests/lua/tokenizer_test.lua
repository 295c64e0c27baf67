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
q.fs.remove(out)
print "tokenizer: ok"
