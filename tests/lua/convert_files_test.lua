-- Conversion of files: formats, policies, sources, duplicates and bad input do what they say.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local conversion = require "conversion"
local q = require "qeng"

local dir, tokenizer, read_all = conversion.folder, conversion.tokenizer, conversion.read_all

-- ---------------------------------------------------------------- formats
local function texts(path, opt)
  opt = opt or {}
  opt.tokenizer = tokenizer
  local counted = q.convert(path, dir .. "/out.qubgpu", opt)
  local list = {}
  for i, record in ipairs((read_all(dir .. "/out.qubgpu"))) do
    list[i] = (tokenizer:decode(record.tokens):gsub("<|endoftext|>$", ""))
  end
  return list, counted
end
local function expect(name, content, list, opt)
  q.fs.write(dir .. "/" .. name, content)
  local got = texts(dir .. "/" .. name, opt)
  assert(table.concat(got, "|") == table.concat(list, "|"),
    ("%s: %q, expected %q"):format(name, table.concat(got, "|"), table.concat(list, "|")))
end
expect("a.json", '\239\187\191 [ {"text": "a,]"} ,\n{"text": "b\\""}\n,{"text":"c"} ] \n', { "a,]", 'b"', "c" })
expect("a.jsonl", '{"text": "a"}\r\n\r\n  \n{"text": "b\\u00e9"}', { "a", "bé" })
expect("a.csv", 'text,id\r\n"a ""b""\nc, d",1\r\nplain,2\n\n"",3\n', { 'a "b"\nc, d', "plain", "" })
expect("a.tsv", 'text\tid\na, "b"\t1\n"c\td"\t2\n', { 'a, "b"', "c\td" })
-- A quote that does not begin its field is text, and swallows no line.
expect("c.csv", 'id,text\n1,5" long\n2,a "" b"\r\n3,"c\n""d"\n4,"e" f"\n5,g\n',
  { '5" long', 'a "" b"', 'c\n"d', "g" }, { max_bad = 1 })
expect("c.tsv", 'text\n5" a\n5" b\n"c\td"\n', { '5" a', '5" b', "c\td" })
for _, long in ipairs { '5" ' .. ("y"):rep(2 ^ 21), '"' .. ('""\n'):rep(2 ^ 19) .. '"' } do
  expect("long.csv", "text\n" .. long .. "\nkept\n", { "kept" }, { max_bad = 1, max_record = 1 })
end
expect("b.csv", "instruction,output\nsay,yes\n",
  { "<|im_start|>user\nsay<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n" })
expect("a.txt", "one\r\n\n two\n", { "one\r\n\n two\n" }, { documents = "file" })
expect("a.txt", "one\nmore\n\n \n two\r\n\r\nthree", { "one\nmore", " two", "three" })
expect("a.txt", "one\r\n\n two\n", { "one", " two" }, { documents = "line" })
expect("a.txt", "nul\0byte", { "nul\0byte" })
expect("a.txt", "bad \255 byte", { "bad \239\191\189 byte" })
expect("b.jsonl", '{"text": "bad \255 byte"}\n', { "bad \239\191\189 byte" })
do
  local got, counted = texts "tests/golden/parquet/not_utf8.parquet"
  assert(table.concat(got, "|") == "K\239\191\189se|a" and counted.repaired == 1, q.conversion_summary(counted))
end

-- ---------------------------------------------------------------- policies, sources, duplicates
local ten = '{"text": "0123456789", "from_": "web"}\n'
q.fs.write(dir .. "/long.jsonl", ten .. '{"text": "01", "from_": 7}\n' .. ten)
local function lengths(opt)
  local _, counted = texts(dir .. "/long.jsonl", opt)
  local list = {}
  for i, record in ipairs((read_all(dir .. "/out.qubgpu"))) do list[i] = #record.tokens end
  return table.concat(list, " "), counted
end
local function check(opt, expected, field, count)
  local list, counted = lengths(opt)
  assert(list == expected, ("%s, expected %s"):format(list, expected))
  if field then assert(counted[field] == count, ("%s: %d, expected %d"):format(field, counted[field], count)) end
end
check({}, "11 3 11", "longer", 0)
check({ max_tokens = 5 }, "11 3 11", "longer", 2)
check({ max_tokens = 5, long = "drop" }, "3", "longer", 2)
check({ max_tokens = 5, long = "split" }, "5 5 1 3 5 5 1", "longer", 2)
check({ max_tokens = 5, long = "end" }, "5 3 5", "longer", 2)
check({ max_tokens = 5, long = "truncate" }, "5 3 5", "longer", 2)
check({ dedupe = true }, "11 3", "duplicates", 1)
assert(q.ndp.open(dir .. "/out.qubgpu"):meta().conversion.duplicates == 1)
local function sources(opt)
  opt.tokenizer = tokenizer
  q.convert(dir .. "/long.jsonl", dir .. "/out.qubgpu", opt)
  local list = {}
  for i, record in ipairs((read_all(dir .. "/out.qubgpu"))) do list[i] = record.src end
  return table.concat(list, " ")
end
assert(sources {} == "1 1 1")
assert(sources { source = "0x42" } == "66 66 66")
assert(sources { source = "code" } == "2 2 2")
assert(sources { source_field = "from_", source_names = { web = 0x41 } } == "65 7 65")
assert(q.ndp.open(dir .. "/out.qubgpu"):meta().counts["0x41"].records == 2)

-- ---------------------------------------------------------------- errors
local function refused(pattern, opt, content, name)
  name = name or "bad.jsonl"
  if content then q.fs.write(dir .. "/" .. name, content) end
  opt.tokenizer = tokenizer
  local ok, fault = pcall(q.convert, dir .. "/" .. name, dir .. "/refused.qubgpu", opt)
  assert(not ok and tostring(fault.message):find(pattern),
    ("expected %s, got %s"):format(pattern, tostring(ok or fault.message or fault)))
  for _, ending in ipairs { "", ".partial", ".partial.index", ".partial.journal" } do
    assert(not q.fs.kind(dir .. "/refused.qubgpu" .. ending), "refused, but left refused.qubgpu" .. ending)
  end
end
refused("2 of 3 records are bad; nothing was written. Mend them, or leave them out: "
  .. "allow a share of bad records of 0.67$", { max_bad = 0.5 }, '{"text": "a"}\nnothing\n{"x": 1}\n')
refused("source 300", { source = "300" }, ten)
refused("needs a limit", { long = "drop" }, ten)
refused("Parquet: its metadata", {}, "PAR1....\0\0\0\0PAR1", "bad.parquet")
refused("Parquet: no whole", {}, "PAR1....", "cut.parquet")
refused("Arrow file.*pyarrow", {}, "ARROW1\0\0", "data.arrow")
refused("bzip2", {}, "BZh9....", "bad.jsonl.bz2")
refused("xz", {}, "\2537zXZ\0....", "bad.jsonl.xz")
refused("UTF%-16", {}, "\255\254{\0", "bad.json")
refused("packet dataset already", {}, q.fs.read(dir .. "/out.qubgpu"), "copy.qubgpu")
refused("ends without %]", {}, '[{"text": "a"}, {"text"', "cut.json")
refused("text after the JSON array", {}, '[{"text": "a"}] x', "after.json")
refused("tell its format; say that it is", {}, "what is this", "unknown")
refused("header names text twice", {}, "text,text\na,b\n", "twice.csv")
refused("missing.jsonl: no such file", {}, nil, "missing.jsonl")
refused("gzip", {}, "\31\139\8\0garbage and more of it", "cut.jsonl.gz")
refused("all of the first", {}, ("nothing\n"):rep(3000))
-- Files packed or written by other programs read as their JSON lines do.
local function same_packets(a, b)
  for i, path in ipairs { a, b } do
    q.convert(path, ("%s/same%d.qubgpu"):format(dir, i), { tokenizer = tokenizer, overwrite = true })
  end
  local function tokens_of(i)
    local all = {}
    for n, record in ipairs((read_all(("%s/same%d.qubgpu"):format(dir, i)))) do
      all[n] = table.concat(record.tokens, " ")
    end
    return table.concat(all, "\n")
  end
  assert(tokens_of(1) == tokens_of(2) and #tokens_of(1) > 5, a .. " is not read as " .. b)
end
q.fs.write(dir .. "/two.jsonl", '{"text": "a"}\n{"text": "b"}\n')
for _, name in ipairs { "two.jsonl.bz2", "two.jsonl.xz" } do
  same_packets("tests/golden/packed/" .. name, dir .. "/two.jsonl")
end
same_packets("tests/golden/parquet/chats.parquet", "tests/golden/parquet/chats.jsonl")

q.fs.remove(dir)
print "convert: files of every format, and what is refused"
