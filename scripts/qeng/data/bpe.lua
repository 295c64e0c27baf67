-- Learns a tokenizer from files of text, JSONL or JSON, for recipes/train_tokenizer.lua.

local progress = require "qeng.console.progress"
local q = require "qeng.core"

local bpe = {}

local block_bytes = 16 * 1024 * 1024  -- of text read at a time: bounds memory, and is work enough for many threads

-- Every string of a record that a model would read. Names of keys and of who speaks are none.
local function strings_of(value, into)
  if type(value) == "string" then
    into[#into + 1] = value
  elseif type(value) == "table" then
    for key, inner in pairs(value) do
      if key ~= "role" and key ~= "from" then strings_of(inner, into) end
    end
  end
end

local function decoded(text, place)
  local ok, value = pcall(q.json.decode, text)
  if not ok then q.error("format", ("%s: not JSON: %s"):format(place, tostring(value.message or value))) end
  return value
end

-- The texts of a file, in lists of about block_bytes bytes. A file that begins with { or [ holds JSONL or a JSON array.
-- Any other file is text, cut after line ends.
function bpe.texts(path)
  local file, why = io.open(path, "rb")
  if not file then q.error("io", ("%s: %s"):format(path, (why or "cannot be read"):gsub("^.-: ", ""))) end
  local head = file:read(4096) or ""
  if head:find "^\31\139" or head:find "^\40\181\47\253" then
    q.error("unsupported", path .. ": is compressed: unpack it first")
  end
  head = head:match "^%s*(.?)"
  file:seek("set", 0)
  if head == "[" then
    local texts = {}
    strings_of(decoded(file:read "*a", path), texts)
    file:close()
    return function()
      local list = texts
      texts = nil
      return list
    end
  end
  local number = 0
  return function()
    if head ~= "{" then
      local block, rest = file:read(block_bytes, "*L")
      return block and { block .. (rest or "") }
    end
    local texts, bytes = {}, 0
    while bytes < block_bytes do
      local line = file:read "*l"
      if not line then break end
      number, bytes = number + 1, bytes + #line
      if line:find "%S" then strings_of(decoded(line, ("%s:%d"):format(path, number)), texts) end
    end
    return bytes > 0 and texts or nil
  end
end

-- opt: files, vocab, specials (texts of tokens), eos, pad (two of them, or nil), pattern, nfc, threads, out (a folder).
-- Writes tokenizer.json, and the tokenizer_config.json with which transformers' AutoTokenizer loads it. Returns the
-- tokenizer and {ids=, bytes=, seconds=}.
function bpe.train(opt)
  for _, name in ipairs { "eos", "pad" } do
    local known = opt[name] == nil
    for _, special in ipairs(opt.specials) do known = known or special == opt[name] end
    if not known then
      q.error("value", ("%s is %s, which is not among the special tokens %s"):format(name, opt[name],
        table.concat(opt.specials, " ")))
    end
  end
  local speak, start = progress.new(), q.time()
  local trainer = q.bpe_trainer { pattern = opt.pattern, nfc = opt.nfc, threads = opt.threads }
  for _, path in ipairs(opt.files) do
    for texts in bpe.texts(path) do
      trainer:add(texts)
      local mb = trainer:bytes() / 1e6
      speak:line(("%s: %.1f MB counted, %.1f MB/s"):format(path, mb, mb / (q.time() - start)))
    end
  end
  speak:line "merging"
  local ids = trainer:write { vocab = opt.vocab, specials = opt.specials, out = opt.out }
  speak:finish()
  q.fs.write(opt.out .. "/tokenizer_config.json", q.json.encode({
    tokenizer_class = "PreTrainedTokenizerFast", eos_token = opt.eos, pad_token = opt.pad,
    clean_up_tokenization_spaces = false,
  }, { pretty = true }) .. "\n")
  return q.tokenizer(opt.out), { ids = ids, bytes = trainer:bytes(), seconds = q.time() - start }
end

return bpe
