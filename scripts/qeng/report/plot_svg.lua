-- Plots (report/plot.lua) as an SVG that stands alone, or in a page.

local charts = require "qeng.report.charts"
local page = require "qeng.report.page"

local plot_svg = {}

local kWidth, kHeight = 800, 420          -- of the whole
local kLeft, kRight, kTop, kBottom = 64, 16, 34, 40  -- around the plot
local kLevels = 64                        -- colours of a heat map: a path for each

local wide, high = kWidth - kLeft - kRight, kHeight - kTop - kBottom

local function text(x, y, anchor, value, more)
  return ('<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>'):format(x, y, anchor, more or "", charts.escape(value))
end

-- Grid and labels of both axes.
local function axes(parts, x0, x1, y0, y1, whole)
  for _, y in ipairs(charts.ticks(y0, y1)) do
    local at = kTop + (y1 - y) / (y1 - y0) * high
    parts[#parts + 1] = ('<path class="grid" d="M%d %.1fh%d"/>'):format(kLeft, at, wide)
    parts[#parts + 1] = text(kLeft - 8, at + 4, "end", charts.label(y, math.max(math.abs(y0), math.abs(y1))))
  end
  for _, x in ipairs(charts.ticks(x0, x1, whole)) do
    local at = kLeft + (x - x0) / (x1 - x0) * wide
    parts[#parts + 1] = text(at, kTop + high + 20, "middle", charts.label(x, math.max(math.abs(x0), math.abs(x1))))
  end
end

local draw = {}

function draw.line(plot, parts)
  axes(parts, plot.x0, plot.x1, plot.y0, plot.y1, true)
  for i, line in ipairs(plot.lines) do
    local path = {}
    for k, point in ipairs(line[2]) do
      path[k] = ("%s%.1f %.1f"):format(k == 1 and "M" or "L", kLeft + (point[1] - plot.x0) / (plot.x1 - plot.x0) * wide,
        kTop + (plot.y1 - point[2]) / (plot.y1 - plot.y0) * high)
    end
    if #path == 1 then path[2] = "h0" end
    parts[#parts + 1] = ('<path class="line" stroke="%s" d="%s"/>'):format(page.light[i], table.concat(path))
    if #plot.lines > 1 then
      parts[#parts + 1] = text(kLeft + wide - 8, kTop + 16 * i, "end", line[1], (' fill="%s"'):format(page.light[i]))
    end
  end
end

function draw.hist(plot, parts)
  local most, bins = 1, #plot.counts
  for _, count in ipairs(plot.counts) do most = math.max(most, count) end
  axes(parts, plot.low, plot.high, 0, most)
  local bars = {}
  for b, count in ipairs(plot.counts) do
    if count > 0 then
      bars[#bars + 1] = ("M%.1f %dv-%.1fh%.1fv%.1fz"):format(kLeft + (b - 1) * wide / bins, kTop + high,
        count / most * high, wide / bins - 0.5, count / most * high)
    end
  end
  parts[#parts + 1] = ('<path fill="%s" d="%s"/>'):format(page.light[1], table.concat(bars))
end

function draw.heat(plot, parts)
  local levels, w, h = {}, (wide - 60) / plot.columns, high / plot.rows
  for r = 1, plot.rows do
    for c = 1, plot.columns do
      local value = plot.cells[r][c]
      if value then
        local level = math.floor((value - plot.low) / (plot.high - plot.low) * (kLevels - 1) + 0.5)
        levels[level] = levels[level] or {}
        table.insert(levels[level], ("M%.2f %.2fh%.2fv%.2fh-%.2fz"):format(
          kLeft + (c - 1) * w, kTop + (r - 1) * h, w, h, w))
      end
    end
  end
  for level = 0, kLevels - 1 do
    local colour = ("#%02x%02x%02x"):format(charts.heat_colour(level / (kLevels - 1)))
    if levels[level] then
      parts[#parts + 1] = ('<path fill="%s" shape-rendering="crispEdges" d="%s"/>'):format(colour,
        table.concat(levels[level]))
    end
    parts[#parts + 1] = ('<path fill="%s" d="M%d %.1fh14v%.1fh-14z"/>'):format(colour, kLeft + wide - 48,
      kTop + (kLevels - 1 - level) * high / kLevels, high / kLevels + 0.5)
  end
  parts[#parts + 1] = text(kLeft + wide - 30, kTop + 10, "start", ("%.3g"):format(plot.high))
  parts[#parts + 1] = text(kLeft + wide - 30, kTop + high, "start", ("%.3g"):format(plot.low))
  parts[#parts + 1] = text(kLeft - 8, kTop + 10, "end", "0")
  parts[#parts + 1] = text(kLeft - 8, kTop + high, "end", plot.height - 1)
  parts[#parts + 1] = text(kLeft, kTop + high + 20, "start", "0")
  parts[#parts + 1] = text(kLeft + wide - 60, kTop + high + 20, "end", plot.width - 1)
end

function plot_svg.draw(plot)
  local parts = {
    ('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12" '
      .. 'fill="#566270" style="max-width:%dpx;width:100%%">'):format(kWidth, kHeight, kWidth),
    "<style>.grid{stroke:#dfe4ea}.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}</style>",
    ('<rect width="%d" height="%d" fill="#fff"/>'):format(kWidth, kHeight),
    text(kLeft, 20, "start", plot.title, ' font-size="14" font-weight="600" fill="#1b2430"'),
  }
  draw[plot.kind](plot, parts)
  if plot.missing > 0 then
    parts[#parts + 1] = text(kLeft + wide, 20, "end", ("%d values are not finite and left out"):format(plot.missing))
  end
  return table.concat(parts) .. "</svg>\n"
end

return plot_svg
