-- Plots (report/plot.lua) as text: lines in Braille dots, histograms in eighths of blocks, heat maps in shades, or in
-- colours where a terminal reads.

local charts = require "qeng.report.charts"
local q = require "qeng.core"

local plot_text = {}

local kHeight, kWidest = 16, 100  -- lines and columns of a plot that nobody gave others

local function is_terminal() return q.host.isatty(1) and os.getenv "TERM" ~= "dumb" end

-- The characters of a plot beside its labels, for labels of so many.
local function width_of(opt, labels)
  return opt.width or math.max(10, math.min(q.host.columns(), kWidest) - labels - 3)
end

local kCountLabel = 5  -- of a histogram
-- The bins of a histogram.
function plot_text.columns(opt) return width_of(opt, kCountLabel) end
-- The most rows and columns of a heat map. A character holds two rows in colours; in shades a cell has two characters.
function plot_text.cells(opt)
  if is_terminal() then return 2 * (opt.height or kHeight), width_of(opt, 0) end
  return opt.height or 2 * kHeight, math.floor(width_of(opt, 0) / 2)
end

local function utf8(code)
  return string.char(0xe0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

-- The frame around lines of text: y labels by line number, and x labels by column.
local function framed(lines, y_labels, width, x_labels)
  local widest, out = 0, {}
  for _, label in pairs(y_labels) do widest = math.max(widest, #label) end
  for i, line in ipairs(lines) do
    local label = y_labels[i] or ""
    out[i] = (" "):rep(widest - #label) .. label .. (y_labels[i] and " ┤" or " │") .. line
  end
  out[#out + 1] = (" "):rep(widest + 1) .. "└" .. ("─"):rep(width)
  local below = ""
  for _, one in ipairs(x_labels) do
    local at = math.max(0, math.min(width - #one[2], one[1] - math.floor(#one[2] / 2)))
    if at >= #below + (below == "" and 0 or 1) then below = below .. (" "):rep(at - #below) .. one[2] end
  end
  out[#out + 1] = (" "):rep(widest + 2) .. below
  return out
end

local function y_labels_of(low, high, height)
  local labels = {}
  for _, y in ipairs(charts.ticks(low, high)) do
    local line = math.floor((high - y) / (high - low) * (height - 1) + 0.5) + 1
    labels[line] = charts.label(y, math.max(math.abs(low), math.abs(high)))
  end
  return labels
end

local function x_labels_of(low, high, width, whole)
  local labels = {}
  for i, x in ipairs(charts.ticks(low, high, whole)) do
    labels[i] = { math.floor((x - low) / (high - low) * (width - 1) + 0.5),
      charts.label(x, math.max(math.abs(low), math.abs(high))) }
  end
  return labels
end

-- ---------------------------------------------------------------- lines

-- Of a dot's column and row in its character.
local braille = { { 0x01, 0x02, 0x04, 0x40 }, { 0x08, 0x10, 0x20, 0x80 } }
local colours = { 34, 31, 32, 35, 33, 36, 91, 90, 97, 92, 94, 93, 95, 96 }

local function draw_lines(plot, opt)
  local height, labels = opt.height or kHeight, 0
  local y_labels = y_labels_of(plot.y0, plot.y1, height)
  for _, label in pairs(y_labels) do labels = math.max(labels, #label) end
  local width = width_of(opt, labels)
  local dots, owner = {}, {}
  local function set(x, y, series)
    local at = math.floor(y / 4) * width + math.floor(x / 2)
    dots[at] = bit.bor(dots[at] or 0, braille[x % 2 + 1][y % 4 + 1])
    owner[at] = series
  end
  local function place(point)
    return math.floor((point[1] - plot.x0) / (plot.x1 - plot.x0) * (2 * width - 1) + 0.5),
      math.floor((plot.y1 - point[2]) / (plot.y1 - plot.y0) * (4 * height - 1) + 0.5)
  end
  for s, line in ipairs(plot.lines) do
    local from_x, from_y
    for _, point in ipairs(line[2]) do
      local x, y = place(point)
      from_x, from_y = from_x or x, from_y or y
      local steps = math.max(math.abs(x - from_x), math.abs(y - from_y), 1)
      for i = 0, steps do
        set(math.floor(from_x + (x - from_x) * i / steps + 0.5), math.floor(from_y + (y - from_y) * i / steps + 0.5), s)
      end
      from_x, from_y = x, y
    end
  end
  local coloured, lines = is_terminal() and #plot.lines > 1, {}
  local function paint(text, series) return coloured and ("\27[%dm%s\27[0m"):format(colours[series], text) or text end
  for row = 0, height - 1 do
    local cells = {}
    for column = 0, width - 1 do
      local at = row * width + column
      cells[column + 1] = dots[at] and paint(utf8(0x2800 + dots[at]), owner[at]) or " "
    end
    lines[row + 1] = table.concat(cells)
  end
  local out = framed(lines, y_labels, width, x_labels_of(plot.x0, plot.x1, width, true))
  if #plot.lines > 1 then
    local names = {}
    for i, line in ipairs(plot.lines) do names[i] = paint("━ " .. line[1], i) end
    out[#out + 1] = table.concat(names, "  ")
  end
  return out
end

-- ---------------------------------------------------------------- histograms and heat maps

local function draw_counts(plot, opt)
  local height, most = opt.height or kHeight, 1
  for _, count in ipairs(plot.counts) do most = math.max(most, count) end
  local lines = {}
  for row = 1, height do
    local cells = {}
    for b, count in ipairs(plot.counts) do
      local eighths = math.floor(count / most * height * 8 + 0.5)
      if count > 0 then eighths = math.max(eighths, 1) end
      local here = math.max(0, math.min(8, eighths - (height - row) * 8))
      cells[b] = here == 0 and " " or utf8(0x2580 + here)
    end
    lines[row] = table.concat(cells)
  end
  local bins = #plot.counts
  return framed(lines, { [1] = charts.label(most, most), [height] = "0" }, bins, x_labels_of(plot.low, plot.high, bins))
end

local shades = { " ", "░", "▒", "▓", "█" }

local function cell_share(plot, row, column)
  local value = plot.cells[row] and plot.cells[row][column]
  return value and (value - plot.low) / (plot.high - plot.low)
end

local function draw_cells(plot)
  local lines = {}
  local function code(row, column, base)
    local share = cell_share(plot, row, column)
    if not share then return ("\27[%dm"):format(base + 1) end  -- the terminal's own
    return ("\27[%d;2;%d;%d;%dm"):format(base, charts.heat_colour(share))
  end
  if is_terminal() then
    for row = 1, plot.rows, 2 do
      local cells = {}
      for column = 1, plot.columns do
        cells[column] = code(row, column, 38) .. code(row + 1, column, 48) .. "▀"
      end
      lines[#lines + 1] = table.concat(cells) .. "\27[0m"
    end
  else
    for row = 1, plot.rows do
      local cells = {}
      for column = 1, plot.columns do
        local share = cell_share(plot, row, column)
        cells[column] = share and shades[math.min(#shades, math.floor(share * #shades) + 1)]:rep(2) or "??"
      end
      lines[row] = table.concat(cells)
    end
  end
  local scale = {}
  for i = 0, 9 do
    scale[i + 1] = is_terminal() and ("\27[38;2;%d;%d;%dm█"):format(charts.heat_colour(i / 9))
      or shades[math.floor(i / 2) + 1]
  end
  local plain = is_terminal() and "\27[0m" or ""
  lines[#lines + 1] = ("%.4g %s%s %.4g"):format(plot.low, table.concat(scale), plain, plot.high)
  return lines
end

function plot_text.draw(plot, opt)
  local draw = { line = draw_lines, hist = draw_counts, heat = draw_cells }
  local lines = draw[plot.kind](plot, opt)
  if plot.title ~= "" then table.insert(lines, 1, plot.title) end
  if plot.missing > 0 then lines[#lines + 1] = ("%d values are not finite and left out"):format(plot.missing) end
  return table.concat(lines, "\n")
end

return plot_text
