-- What a dataset's README says of its files: its YAML, its patterns, and what is refused.
local q = require "qeng"
local configs, glob = require "qeng.hub.configs", require "qeng.hub.glob"

local function text_of(value)
  if type(value) ~= "table" then return ("%q"):format(value) end
  local parts = {}
  for i, one in ipairs(value) do parts[i] = text_of(one) end
  if #parts > 0 then return "[" .. table.concat(parts, ",") .. "]" end
  for key, one in pairs(value) do parts[#parts + 1] = key .. "=" .. text_of(one) end
  table.sort(parts)
  return "{" .. table.concat(parts, ",") .. "}"
end
local function of(text) return q.host.yaml(text, "card").configs end
local function read(text) return text_of(of(text)) end
local function refused(pattern, fn, ...)
  local result, why = q.try(fn, ...)
  assert(not result and why.message:find(pattern),
    ("expected %s, got %s"):format(pattern, result and text_of(result) or why.message))
end

-- one value, however it is written; expected as PyYAML reads it
local same = '[{a="x y",b=["1","two"]},{a="it\'s"}]'
for _, text in ipairs {
  "configs:\n- a: x y\n  b:\n  - 1\n  - two\n- a: it's\n",
  "configs:\r\n  -   a: 'x y' # one\r\n      b: [1, 'two'] \r\n\r\n  # two\r\n  - {a: \"it's\"}\r\nother: [1]\r\n",
  "other: x\nconfigs: [{a: x\n  y, b: [1,\n two,]}, {\"a\": 'it''s'}]",
  "configs:\n-\n  a: >-\n    x\n    y\n  b:\n    - 1\n    -\n      two\n- a: |-\n    it's\n",
  '"configs":\n - a: "x\\\n     \\x20y"\n   b: ["1", "\\u0074wo"]\n   c:\n   d: ~\n - "a": it\'s\n',
  "{other: 1, configs: [{a: x y, b: [1, two]}, {a: it's}]}",
  "  a:\n    configs: 1\n  configs:\n  - a: x\n      y\n    b: [1, two]\n  - a: it's",
} do
  assert(read(text) == same, read(text))
end
assert(of "a:\n configs: 1\n# configs: 2\nb: |\n  configs: 3\n" == nil and q.host.yaml("", "card") == nil)
for text, pattern in pairs {
  ["configs:\n- a: *.jsonl"] = "^card, line 2: .", ["configs:\n- a: &x 1"] = "line 2: anchors and tags",
  ["a: !!python/object x"] = "line 1: anchors and tags",
  ["a: &x 1\nb: *x"] = "anchors and tags", ["configs:\n- a: 1\n  a: 2"] = "line 3: the key a is there twice",
  ["configs: 1\nconfigs: 2"] = "line 2: the key configs is there twice",
  ["configs:\n  - a: 1\n - a: 2"] = "line %d: .", ["configs:\n- a: 'x\n  b"] = "line %d: .",
  ["configs: [a, {b: 1]"] = "line 1: .", ["configs: [a"] = "line %d: .",
  ["configs:\n-\n- a"] = "an empty entry", ["configs:\n- a: b: c"] = "line 2: .", ["configs:\n\t- a"] = "line 2: .",
  ['configs: "\\q"'] = "escape", ["[a]: 1"] = "a key that is no text",
  ["configs: " .. ("["):rep(1e5)] = "more than 32 deep", ["configs:\n" .. ("- "):rep(1e4) .. "a"] = "more than 32 deep",
  ["a: 1\n---\nb: 2"] = "a second document",
} do
  refused(pattern, q.host.yaml, text, "card")
end
assert(configs.front_matter "---\na: 1\n---\nb" == "\na: 1" and not configs.front_matter "# Title\n---\na: 1\n---\n" and
  not configs.front_matter "---\na: 1\n")

-- hostile sizes take no time to speak of
local began = q.time()
for _, text in ipairs { (" "):rep(2e6) .. "x", ("a: "):rep(5e5), ("["):rep(30) .. ("a,"):rep(5e5),
    ("a" .. (" "):rep(1000)):rep(2000), ("'' "):rep(5e5) } do
  q.try(q.host.yaml, "configs: " .. text, "card")
  q.try(q.host.yaml, "configs:\n- " .. text .. "\n" .. text, "card")
end
assert(glob.matches(glob.compile(("*a"):rep(300)), ("a"):rep(300)) and not glob.matches(glob.compile(("*a"):rep(300)),
  ("a"):rep(299)))
assert(q.time() - began < 20, q.time() - began)  -- some 3 s on a busy core; hours where any step is quadratic

-- patterns; expected as the library datasets 5.2 resolves them
local paths = { "README.md", "a.jsonl", "b.jsonl", "data/a1.jsonl", "data/deep/a2.jsonl", "data/.h/a3.jsonl",
  "data/__c/a4.jsonl", "data/中.jsonl", "x{1}.jsonl" }
local files = {}
for i, path in ipairs(paths) do files[i] = { path = path } end
for pattern, expected in pairs {
  ["*"] = "a.jsonl b.jsonl x{1}.jsonl", ["*.jsonl"] = "a.jsonl b.jsonl x{1}.jsonl", ["?.jsonl"] = "a.jsonl b.jsonl",
  ["**"] = "a.jsonl b.jsonl data/a1.jsonl data/deep/a2.jsonl data/中.jsonl x{1}.jsonl",
  ["data/**"] = "data/a1.jsonl data/deep/a2.jsonl data/中.jsonl",
  ["**/a[0-9].jsonl"] = "data/a1.jsonl data/deep/a2.jsonl", ["data/*/*"] = "data/deep/a2.jsonl",
  ["data/.h/*"] = "data/.h/a3.jsonl",
  ["**/__c/*"] = "data/__c/a4.jsonl", ["data/?.jsonl"] = "data/中.jsonl", ["[!a].jsonl"] = "b.jsonl",
  ["[]a].jsonl"] = "a.jsonl", ["[b-a].jsonl"] = "",
  ["README.md"] = "README.md", ["x{1}.jsonl"] = "x{1}.jsonl", ["{a,b,c}.jsonl"] = "a.jsonl b.jsonl",
  ["data/{a1,{deep,x}/a2}.jsonl"] = "data/a1.jsonl data/deep/a2.jsonl",
  ["data[!x]a1.jsonl"] = "data/a1.jsonl",
} do
  local found = {}
  for i, file in ipairs(glob.files(pattern, files)) do found[i] = file.path end
  assert(table.concat(found, " ") == expected, pattern .. ": " .. table.concat(found, " "))
end
assert(glob.join("./data/", ".//x/*") == "data/x/*")
for _, path in ipairs { "/etc/passwd", "../x", "a/../../x", "https://h/x", "zip://a::b" } do
  refused("leads out of", glob.join, "data", path)
end
refused("can only be a whole part", glob.files, "**.jsonl", files)
refused("alternatives", glob.files, ("{a,b}"):rep(20), files)

-- configs that cannot be followed
local function files_of(card, name)
  name = name or {}
  name.repo = "org/name"
  local list = configs.read("---\nconfigs:\n" .. card .. "\n---\n", "card")
  local notes = {}
  local found, config = configs.files(list, name, files, function(text) notes[#notes + 1] = text end)
  return found, config, table.concat(notes, "\n")
end
for card, pattern in pairs {
  ["- data_files: x"] = "entry 1 of configs has no config_name",
  ["  a: x"] = "configs is no list",
  ["- config_name: a\n  data_files: x.jsonl"] = "no file x.jsonl in the repository",
  ["- config_name: a\n  data_files: [a.jsonl, 'x{2,3}.jsonl']"] = "no file x{2,3}.jsonl in the repository",
  ["- config_name: a\n  data_files: x*y"] = "no file in the repository that is like x%*y",
  ["- config_name: a\n  data_files: {train: a.jsonl}"] = "names no path; expected",
  ["- config_name: a\n  data_files: [{split: t-1, path: a.jsonl}]"] = "names no split by letters",
  ["- config_name: a\n  data_files: [{split: t, path: a.jsonl}, {split: t, path: b.jsonl}]"] = "split t is there twice",
  ["- config_name: a\n  data_files: [{split: t, path: a.jsonl}, b.jsonl]"] = "entry 2 has not split and path",
  ["- config_name: a\n  data_files: [{split: t, path: a.jsonl}, {split: u, path: b.jsonl}]"] =
  "no split train; name one, as org/name:a:t; it has t, u",
  ["- {config_name: a, default: true}\n- {config_name: b, default: true}"] = "a and b are both the default",
  ["- {config_name: a, default: tru, data_files: a.jsonl}"] = "config a: default is neither true nor false",
  ["- config_name: a\n  data_dir: nothing"] = "neither data_files nor files under nothing",
  ["- config_name: a\n  field: rows\n  data_files: a.jsonl"] = "says field: rows",
} do
  refused(pattern, files_of, card)
end
local both = "- {config_name: a, data_files: [a.jsonl, '*.jsonl']}\n- {config_name: default, default: false, " ..
  "data_files: b.jsonl}"
local found, config, notes = files_of(both)
assert(config == "default" and #found == 1 and notes == "", "the config of the name default")
found, config, notes = files_of(both, { split = "a" })
assert(notes:find "split train: 1 of its 4 files are there again", notes)
assert(config == "a" and #found == 4 and found[1].path == "a.jsonl" and found[2].path == "a.jsonl",
  "a file that two paths name is there twice")
