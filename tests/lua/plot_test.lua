-- q.plot: what the terminal shows of small tensors, files, and what is refused.
package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"

local function plotted(what, opt)
  local said, print_ = nil, print
  print = function(text) said = text end
  local ok, err = pcall(q.plot, what, opt)
  print = print_
  if not ok then error(err, 0) end
  return said
end
local function shows(what, opt, ...)
  local text, expected = plotted(what, opt), table.concat({ ... }, "\n")
  text = (text .. "\n"):gsub(" +\n", "\n"):sub(1, -2)
  assert(text == expected, ("expected\n%s\ngot\n%s"):format(expected, text))
end

shows({ 0, 1, 2, 3 }, { width = 8, height = 4 }, "4 values",
  "3 ┤      ⡠⠊", "2 ┤    ⡠⠊", "1 ┤  ⡠⠊", "0 ┤⡠⠊", "  └────────", "   0 1  2 3")
shows(q.tensor { 5, 5 }, { width = 4, height = 2 }, "f32 [2]", "5.4 ┤", "  5 ┤⠉⠉⠉⠉", "    └────", "     0  1")
shows(q.tensor({ 0, 0, 0, 1, 2, 2, 3, 0 / 0 }):label "w", { kind = "hist", bins = 4, height = 3 }, "f32 [8] w",
  "3 ┤█", "  │█ █", "0 ┤████", "  └────", "   0 2", "1 values are not finite and left out")
shows(q.tensor { { 0, 1 }, { 2, 4 } }, {}, "f32 [2, 2]", "  ░░", "▒▒██", "0   ░░▒▒▓▓██ 4")

-- A spike among a million is seen, in any bin of a line; a heat map shows means.
local spike = q.zeros { 1000000 }
spike:rows(123456, 1):fill(7)
local top = plotted(spike, { width = 20, height = 5 }):match "\n(.-)\n"
assert(top:find "\226[\160-\163]", top)  -- Braille
shows(q.tensor { { 0, 2, 8, 8 }, { 2, 4, 8, 8 } }:reshape { 2, 4 }, { width = 4, height = 1, title = "means" }, "means",
  "  ██", "2   ░░▒▒▓▓██ 8")
assert(select(2, plotted(q.randn { 3, 50 }, { kind = "line" }):gsub("━ row", "")) == 3)

for kind, what in pairs { line = spike, hist = spike, heat = q.randn { 300, 200 } } do
  for _, ending in ipairs { ".svg", ".html" } do
    local path = scratch.at(kind .. ending)
    assert(plotted(what, { kind = kind, out = path, title = "a < b" }) == nil)
    local text = q.fs.read(path)
    assert(text:find("<svg xmlns", 1, true) and text:find("a &lt; b", 1, true) and not text:find "nan", path)
    assert(#text < 1e6, path .. " has " .. #text)
    assert((text:sub(1, 4) == "<svg") == (ending == ".svg"))
  end
end

local refused = scratch.refused
refused("no option kid", q.plot, { 1 }, { kid = "hist" })
refused("kind is bars", q.plot, { 1 }, { kind = "bars" })
refused("a path that ends in .html or .svg", q.plot, { 1 }, { out = "x.png" })
refused("bins is 0, expected a whole number", q.plot, { 1 }, { bins = 0 })
refused("bins is a string", q.plot, { 1 }, { bins = "2" })
refused("a tensor, a list of numbers", q.plot, "x")
refused("a tensor, a list of numbers", q.plot, nil)
refused("more than 14 lines", q.plot, q.zeros { 20, 3 }, { kind = "line" })
refused("the tensor has no elements", q.plot, q.zeros { 0 })
refused("nothing in the table", q.plot, {})
assert(plotted(q.quantize(q.randn { 2, 256 }, "q8_0")):find "q8_0 %[2, 256%]")
print "plot: ok"
