-- q.plot: a line, a histogram or a heat map of tensors, in the terminal (report/plot_text.lua) or as a file
-- (report/plot_svg.lua). Here values become what both draw:
--   {kind = "line", lines = {{name, {{x, y}...}}...}, x0, x1, y0, y1}   x counts elements from 0
--   {kind = "hist", counts, low, high}                                  bins of equal width
--   {kind = "heat", rows, columns, cells, low, high}                    cells[row][column], means of what they cover
-- and title. What is not finite is left out, and counted in `missing`.

local page = require "qeng.report.page"
local plot_svg = require "qeng.report.plot_svg"
local plot_text = require "qeng.report.plot_text"
local q = require "qeng.core"

local kMost = 2000       -- stretches of a line, of which the least and the greatest are kept
local kLines = 14        -- colours of the palette
local kCells = 128       -- a side of a heat map in a file
local kPiece = 2 ^ 16    -- elements that are read at a time

local plain = { f32 = true, bf16 = true, f16 = true, i32 = true, i64 = true, u8 = true }

local function finite(value) return value - value == 0 end

-- A tensor of what may be plotted: a tensor, or a list of numbers.
local function tensor_of(what)
  local meta = getmetatable(what)
  if type(what) == "userdata" and meta and meta.__name == "Tensor" then
    local tensor = plain[what:dtype()] and what or what:to "f32"
    if tensor:elements() == 0 then q.error("shape", "plot: the tensor has no elements") end
    return tensor
  end
  if type(what) == "table" and type(what[1]) == "number" then return q.tensor(what) end
  local given = type(what) == "userdata" and meta and meta.__name or type(what)
  q.error("value", ("plot: a tensor, a list of numbers, or a table of those by name expected, got %s"):format(given))
end

-- Calls visit(i, value) for the elements of a tensor, from 0; a piece is read at a time.
local function each(tensor, visit)
  local n = tensor:elements()
  local flat = tensor:reshape { n }
  for first = 0, n - 1, kPiece do
    for i, value in ipairs(flat:rows(first, math.min(kPiece, n - first)):table()) do visit(first + i - 1, value) end
  end
end

-- ---------------------------------------------------------------- the three kinds

local function points_of(tensor, plot)
  local n, points = tensor:elements(), {}
  local stretch, low, high = math.max(1, math.ceil(n / kMost)), nil, nil
  local function keep()
    if not low then return end
    local first, last = low, high
    if first[1] > last[1] then first, last = last, first end
    points[#points + 1] = first
    if first[1] ~= last[1] then points[#points + 1] = last end
    low, high = nil, nil
  end
  each(tensor, function(i, value)
    if not finite(value) then
      plot.missing = plot.missing + 1
    else
      if not low or value < low[2] then low = { i, value } end
      if not high or value > high[2] then high = { i, value } end
    end
    if (i + 1) % stretch == 0 then keep() end
  end)
  keep()
  return points
end

local function lines_of(what, plot)
  local named = {}
  if type(what) == "table" and type(what[1]) ~= "number" then
    for name, values in pairs(what) do named[#named + 1] = { tostring(name), tensor_of(values) } end
    table.sort(named, function(a, b) return a[1] < b[1] end)
  else
    local tensor = tensor_of(what)
    local shape = tensor:shape()
    local columns = #shape > 0 and shape[#shape] or 1
    local rows = tensor:elements() / columns
    local matrix = tensor:reshape { rows, columns }
    for i = 0, math.min(rows, kLines + 1) - 1 do named[i + 1] = { "row " .. i, matrix:rows(i, 1) } end
  end
  if #named == 0 then q.error("value", "plot: there is nothing in the table") end
  if #named > kLines then
    q.error("value", ("plot: more than %d lines; take some rows, as t:rows(0, 8), or kind = \"heat\""):format(kLines))
  end
  plot.lines, plot.x0, plot.x1, plot.y0, plot.y1 = {}, 0, 1, math.huge, -math.huge
  for i, one in ipairs(named) do
    plot.lines[i] = { one[1], points_of(one[2], plot) }
    plot.x1 = math.max(plot.x1, one[2]:elements() - 1)
    for _, point in ipairs(plot.lines[i][2]) do
      plot.y0, plot.y1 = math.min(plot.y0, point[2]), math.max(plot.y1, point[2])
    end
  end
  if plot.y0 > plot.y1 then plot.y0, plot.y1 = 0, 1 end
  if plot.y0 == plot.y1 then
    local margin = plot.y0 == 0 and 1 or math.abs(plot.y0) / 10
    plot.y0, plot.y1 = plot.y0 - margin, plot.y1 + margin
  end
end

local function counts_of(tensor, plot, bins)
  local low, high = math.huge, -math.huge
  each(tensor, function(_, value)
    if finite(value) then low, high = math.min(low, value), math.max(high, value) end
  end)
  if low > high then low, high = 0, 1 end
  if low == high then low, high = low - 0.5, high + 0.5 end
  plot.counts, plot.low, plot.high = {}, low, high
  for b = 1, bins do plot.counts[b] = 0 end
  each(tensor, function(_, value)
    if not finite(value) then
      plot.missing = plot.missing + 1
      return
    end
    local b = math.min(bins, math.floor((value - low) / (high - low) * bins) + 1)
    plot.counts[b] = plot.counts[b] + 1
  end)
end

local function cells_of(tensor, plot, most_rows, most_columns)
  local shape = tensor:shape()
  local width = #shape > 0 and shape[#shape] or 1
  local height = tensor:elements() / width
  local rows, columns = math.min(height, most_rows), math.min(width, most_columns)
  plot.rows, plot.columns, plot.cells, plot.height, plot.width = rows, columns, {}, height, width
  local counts = {}
  for r = 1, rows do plot.cells[r], counts[r] = {}, {} end
  each(tensor, function(i, value)
    local r = math.floor(math.floor(i / width) * rows / height) + 1
    local c = math.floor(i % width * columns / width) + 1
    if not finite(value) then
      plot.missing = plot.missing + 1
      return
    end
    plot.cells[r][c], counts[r][c] = (plot.cells[r][c] or 0) + value, (counts[r][c] or 0) + 1
  end)
  plot.low, plot.high = math.huge, -math.huge
  for r = 1, rows do
    for c = 1, columns do
      if counts[r][c] then
        local mean = plot.cells[r][c] / counts[r][c]
        plot.cells[r][c], plot.low, plot.high = mean, math.min(plot.low, mean), math.max(plot.high, mean)
      end
    end
  end
  if plot.low > plot.high then plot.low, plot.high = 0, 1 end
  if plot.low == plot.high then plot.high = plot.low + 1 end
end

-- ---------------------------------------------------------------- q.plot

local function described(what)
  if type(what) == "userdata" then
    local label = what:label()
    return ("%s [%s]%s"):format(what:dtype(), table.concat(what:shape(), ", "), label ~= "" and " " .. label or "")
  end
  return type(what[1]) == "number" and ("%d values"):format(#what) or ""
end

local known = {
  kind = "string", bins = "number", width = "number", height = "number", title = "string", out = "string",
}

local function check(opt)
  for name, value in pairs(opt) do
    if not known[name] then
      q.error("value", ("plot: no option %s; there are bins, height, kind, out, title, width"):format(tostring(name)))
    end
    if type(value) ~= known[name] then
      q.error("value", ("plot: %s is a %s, expected a %s"):format(name, type(value), known[name]))
    end
    if known[name] == "number" and not (value >= 1 and value <= 1000 and value % 1 == 0) then
      q.error("value", ("plot: %s is %g, expected a whole number from 1 to 1000"):format(name, value))
    end
  end
  if opt.out and not (opt.out:find "%.html$" or opt.out:find "%.svg$") then
    q.error("value", ("plot: out is %s, expected a path that ends in .html or .svg"):format(opt.out))
  end
end

local function prepare(what, opt)
  local plot = { kind = opt.kind, missing = 0 }
  if not plot.kind then
    local shape = type(what) == "userdata" and tensor_of(what):shape() or {}
    plot.kind = #shape == 2 and shape[1] > 1 and shape[2] > 1 and "heat" or "line"
  end
  if plot.kind == "line" then
    lines_of(what, plot)
  elseif plot.kind == "hist" then
    counts_of(tensor_of(what), plot, opt.bins or opt.out and 60 or plot_text.columns(opt))
  elseif plot.kind == "heat" then
    if opt.out then
      cells_of(tensor_of(what), plot, kCells, kCells)
    else
      cells_of(tensor_of(what), plot, plot_text.cells(opt))
    end
  else
    q.error("value", ("plot: kind is %s, expected line, hist or heat"):format(plot.kind))
  end
  plot.title = opt.title or described(what)
  return plot
end

-- what: a tensor, a list of numbers, or a table of those by name (lines).
return function(what, opt)
  opt = opt or {}
  check(opt)
  local plot = q.no_grad(q.scope, prepare, what, opt)
  if not opt.out then
    print(plot_text.draw(plot, opt))
  elseif opt.out:find "%.svg$" then
    q.fs.write(opt.out, plot_svg.draw(plot))
  else
    page.write(opt.out, plot.title ~= "" and plot.title or "plot", { plot_svg.draw(plot) })
  end
end
