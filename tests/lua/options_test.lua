-- q.options: the list is in the order of --help, defaults show the types, sets bring in options; and what is refused.
local options = require "qeng.console.options"
local q = require "qeng"
local refused = require("scratch").refused

options.set("test fruit", { { "apples", 3, "how many", min = 1 }, { "ripe", false, "only these" } })
local list = {
  "Counts.",
  positional = { "file" }, rest = "more",
  { "file", nil, "what is read", required = true },
  { "share", 0.5, "of them", max = 1 },
  { "epochs", 1, "passes", number = true },
  "test fruit",
  { "names", {}, "whose" },
  { "sizes", { 1, 2 }, "how large", min = 1 },
  { "rates", {}, "how fast", number = true },
  { "layers", {}, "which", number = "whole", min = 0 },
  { "ranks", {}, "of layers", kind = "map" },
  { "biases", {}, "of tokens", kind = "map", blanks = true },
  { "budget", nil, "memory", kind = "bytes" },
  { "level", 7, "of a counter", choices = { 1, 3, 7 } },
  { "mode", "some", "which", choices = { "some", "all" } },
}
local function parse(...) return q.options(list, { ... }, "test") end
local function wrong(text, ...) refused(text, parse, "in", ...) end

-- ---- values
local opt = parse("in", "out", "--share", "0.25", "--epochs=1.5", "--names", " a, b c,,d", "--rates=0.5,2", "--ranks",
  "q = 8, layers.0.k=4",
  "--biases", " red=-1,a=b=2", "--budget", "1.5G", "--level", "3", "--ripe")
assert(opt.file == "in" and opt.more[1] == "out" and opt.share == 0.25 and opt.epochs == 1.5 and opt.ripe == true and
  opt.apples == 3)
assert(table.concat(opt.names, "|") == "a|b c|d" and opt.rates[2] == 2 and #opt.sizes == 2 and opt.sizes ~= list[7][2])
assert(opt.ranks.q == 8 and opt.ranks["layers.0.k"] == 4 and opt.biases[" red"] == -1 and opt.biases["a=b"] == 2)
assert(opt.budget == 1.5e9 and opt.level == 3 and opt.mode == "some")
assert(opt.__given.ripe and opt.__given.file and not opt.__given.apples)
opt = parse("in", "--names", "a,b", "--names=c", "--sizes", "3", "--ranks", "q=8,k=2", "--ranks", "k=4",
  "--share", "0.1", "--share", "0.2")
assert(table.concat(opt.names, "|") == "a|b|c" and #opt.sizes == 1 and opt.sizes[1] == 3 and opt.ranks.q == 8 and
  opt.ranks.k == 4 and opt.share == 0.2, "given twice")
assert(parse("in", "--ripe=false").ripe == false and parse("in", "--names", ",").names[1] == nil)

-- ---- what is wrong with them
wrong("unknown option --appels; did you mean --apples?", "--appels", "4")
wrong("--apples 2.5: not a whole number", "--apples", "2.5")
wrong("--apples 0: has to be at least 1", "--apples=0")
wrong("--share 2: has to be at most 1", "--share", "2")
wrong("--sizes x: not a number", "--sizes", "1,x")
wrong("--sizes 1.5: not a whole number", "--sizes", "1.5")
wrong("--layers 0-1: not a number", "--layers", "0-1")
wrong("--layers 1.5: not a whole number", "--layers", "0,1.5")
wrong('--ranks q: "q" is not NAME=NUMBER', "--ranks", "q")
wrong("--mode most: one of some, all", "--mode", "most")
wrong("--level 5: one of 1, 3, 7", "--level", "5")
wrong("--budget much: expected a size", "--budget", "much")
wrong("--ripe takes no value", "--ripe=yes")
wrong("--share needs a value", "--share")
refused("--file is required: what is read", q.options, list, {}, "test")

-- ---- declarations
local again = { "Counts.", "test fruit", { "apples", 5, "more of them" } }
assert(q.options(again, {}).apples == 5 and options.entries("test fruit").apples[2] == 3)
refused('takes a list in the order of --help: { "rank", default, help } instead of rank = ', q.options,
  { rank = { 16, "LoRA rank" } }, {})
refused("no set of options is called fruits", q.options, { "Counts.", "fruits" }, {})
refused('entry 16: expected { "name", default, "help" }', q.options, { { 16, "LoRA rank" } }, {})

-- ---- a set that a script gives, and what is written of it
opt = options.complete("count", "test fruit", { apples = 4, colour = "red" }, { "colour" })
assert(opt.apples == 4 and opt.ripe == false and opt.colour == "red" and opt.__given.apples and not opt.__given.ripe)
refused("count: apples is 1.5: not a whole number", options.complete, "count", "test fruit", { apples = 1.5 })
refused("count: ripe is 1: not true or false", options.complete, "count", "test fruit", { ripe = 1 })
refused("count: no option riped; did you mean ripe?", options.complete, "count", "test fruit", { riped = true })
assert(options.complete("count", "test fruit", setmetatable({ more = 1 }, { __index = { __given = {} } })).more == 1,
  "what was parsed may hold more")
local written = options.settings { names = { "a", "b" }, ranks = { q = 8, k = 4 }, none = {}, share = 0.5,
  ripe = false, f = print }
assert(q.json.encode(written) == q.json.encode { names = "a,b", ranks = "k=4,q=8", none = "", share = 0.5,
  ripe = false })

-- ---- several processes of a job
local join = q.ranks.join
q.ranks.join = function() return { size = function() return 2 end } end
options.set("test ranks", { ranks = true, { "shares", 1, "of each" } })
local with_resume = { "Counts.", { "resume", false, "go on" } }
refused("this recipe runs in one process, and this is one of 2", q.options, with_resume, {}, "test")
assert(q.options({ "Counts.", "test ranks" }, {}, "test").shares == 1 and
  q.options({ "Counts.", "test fruit", ranks = true }, {}, "test").apples == 3)
q.ranks.join = join

-- ---- the help, in the order of the list
local text, write, exit = "", io.write, os.exit
io.write, os.exit = function(part) text = text .. part end, function() error "enough" end
pcall(q.options, { "Counts.", { "b", 1, "first", min = 0 }, { "a", { "x", "y" }, "second" },
  { "out", "o", "x", kind = "folder" } },
  { "--help" }, "count.lua")
io.write, os.exit = write, exit
assert(text == [[
usage: qeng count.lua [options]

Counts.

  --b N                        first (default 1, at least 0)
  --a TEXT,...                 second (default x,y)
  --out TEXT                   x (default o)
  --overwrite                  write also over what is read here, or is of another kind
  --help                       this text
]], text)
print "options: ok"
