-- Charts of a report: a figure of HTML with an SVG in it. The SVG stretches with the page; labels and strokes keep
-- their size, so a chart reads the same on a telephone. The labels are HTML. Colours are numbers in the palette of
-- report/page.lua.
--
--   charts.draw(title, unit, series, opt)
--   series: { {label, colour, {{x, y}...}, dots = true or "alone" (no line)}... }; x are whole numbers. A dot that is
--     {x, y, low, high} has an error bar, and label = names it in place of its series
--   opt: log        offers a logarithmic axis; "on": shows it at first
--        fractions  x are not whole
--        smooth     offers the mean over neighbours, beside what was measured
--        id         names the check boxes

local charts = {}

local shown = 400  -- points of a line: about as many as a chart has pixels across
local scale = 1000  -- of the SVG's coordinates

local function escape(text)
  return (tostring(text):gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end
charts.escape = escape

-- Round numbers within [low, high], about five of them; whole: none with a fraction.
local function ticks(low, high, whole)
  local step = 10 ^ math.floor(math.log10((high - low) / 4))
  for _, factor in ipairs { 1, 2, 2.5, 5, 10 } do
    local fits = not whole or step * factor == math.floor(step * factor)
    if fits and (high - low) / (step * factor) <= 5 then step = step * factor; break end
  end
  if whole then step = math.max(1, step) end
  local list = {}
  for i = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do list[#list + 1] = i == 0 and 0 or i * step end
  return list
end

charts.ticks = ticks

-- 1, 2 and 5 times powers of ten within [low, high]. Where those are many: the powers alone. Where they are few:
-- ticks().
local function log_ticks(low, high)
  for _, factors in ipairs { { 1, 2, 5 }, { 1 } } do
    local list = {}
    for power = math.floor(math.log10(low)), math.ceil(math.log10(high)) do
      for _, factor in ipairs(factors) do
        local value = factor * 10 ^ power
        if value >= low and value <= high then list[#list + 1] = value end
      end
    end
    if #list < 3 then return ticks(low, high) end
    if #list <= 7 then return list end
  end
  return { low, high }
end

-- A tick as text: 0.25, 1500, 20k, 1.5M, 1e-4. The largest value of the axis decides the unit.
local function label(value, largest)
  if value == 0 then return "0" end
  for _, unit in ipairs { { 1e9, "G" }, { 1e6, "M" }, { 1e4, "k", 1e3 } } do
    if largest >= unit[1] then return ("%.4g"):format(value / (unit[3] or unit[1])) .. unit[2] end
  end
  local text = ("%.4g"):format(value)
  if largest < 1e-3 and not text:find "e" then text = ("%.3e"):format(value):gsub("%.?0*e", "e") end
  return (text:gsub("e([+-])0*", function(sign) return sign == "-" and "e-" or "e" end))
end

charts.label = label

-- The colour of a share of a heat map's range, dark blue to yellow: five points of viridis, by eye of equal distance.
local heat = { { 68, 1, 84 }, { 59, 82, 139 }, { 33, 145, 140 }, { 94, 201, 98 }, { 253, 231, 37 } }
function charts.heat_colour(share)
  local at = math.max(0, math.min(1, share)) * (#heat - 1)
  local i = math.min(#heat - 2, math.floor(at))
  local from, to, rest = heat[i + 1], heat[i + 2], at - i
  local function mixed(k) return math.floor(from[k] + (to[k] - from[k]) * rest + 0.5) end
  return mixed(1), mixed(2), mixed(3)
end

-- At most `shown` points: the least and the greatest of each stretch. So no spike is lost.
local function thin(points)
  if #points <= shown then return points end
  local kept, stretches = {}, shown / 2
  for s = 0, stretches - 1 do
    local from, to = math.floor(s * #points / stretches) + 1, math.floor((s + 1) * #points / stretches)
    local low, high = from, from
    for i = from, to do
      if points[i][2] < points[low][2] then low = i end
      if points[i][2] > points[high][2] then high = i end
    end
    kept[#kept + 1] = points[math.min(low, high)]
    if low ~= high then kept[#kept + 1] = points[math.max(low, high)] end
  end
  return kept
end

-- The mean over `width` points around each point. Near the ends it takes fewer, as many on either side.
local function smoothed(points, width)
  local sums = { [0] = 0 }
  for i, p in ipairs(points) do sums[i] = sums[i - 1] + p[2] end
  local list, every = {}, math.max(1, math.floor(#points / shown))
  for i = 1, #points, every do
    local reach = math.min(math.floor(width / 2), i - 1, #points - i)
    list[#list + 1] = { points[i][1], (sums[i + reach] - sums[i - reach - 1]) / (2 * reach + 1) }
  end
  return list
end

local function place(value) return ("%.0f"):format(value * scale):gsub("^%-0$", "0") end

-- One axis (class "lin" or "log"): its grid, lines and dots, and the labels beside it. range: x0, x1, y0, y1.
local function plot(class, series, range, widths)
  local log = class == "log"
  local function share(y)
    return log and math.log(y / range.y0) / math.log(range.y1 / range.y0) or (y - range.y0) / (range.y1 - range.y0)
  end
  local function at(p) return place((p[1] - range.x0) / (range.x1 - range.x0)) .. " " .. place(1 - share(p[2])) end
  local function path(points)
    local parts = {}
    for _, p in ipairs(points) do
      if not log or p[2] > 0 then parts[#parts + 1] = (#parts == 0 and "M" or "L") .. at(p) end
    end
    return table.concat(parts)
  end
  local svg, labels = { ('<g class="%s">'):format(class) }, { ('<div class="y %s">'):format(class) }
  local lines = log and log_ticks(range.y0, range.y1) or ticks(range.y0, range.y1)
  for _, y in ipairs(lines) do
    local from_top = 1 - share(y)
    svg[#svg + 1] = ('<path class="grid" d="M0 %sH%d"/>'):format(place(from_top), scale)
    labels[#labels + 1] = ('<i style="top:%.1f%%">%s</i>'):format(
      100 * from_top, label(y, math.max(math.abs(range.y0), math.abs(range.y1))))
  end
  for i, s in ipairs(series) do
    if #s[3] > 1 and s.dots ~= "alone" then
      svg[#svg + 1] = ('<path class="line s%d%s" d="%s"/>'):format(s[2], widths[i] and " raw" or "", path(thin(s[3])))
      if widths[i] then
        svg[#svg + 1] = ('<path class="line mean s%d" d="%s"/>'):format(s[2], path(smoothed(s[3], widths[i])))
      end
    end
    for _, p in ipairs((s.dots or #s[3] == 1) and thin(s[3]) or {}) do
      if not log or p[2] > 0 then
        svg[#svg + 1] = ('<path class="dot s%d" d="M%sh0"><title>%s, %g: %.4g</title></path>'):format(
          s[2], at(p), escape(p.label or s[1]), p[1], p[2])
        if p[4] then
          local low = log and math.max(p[3], range.y0) or p[3]
          svg[#svg + 1] = ('<path class="line s%d" d="M%sL%s"/>'):format(s[2], at { p[1], low }, at { p[1], p[4] })
        end
      end
    end
  end
  return table.concat(svg) .. "</g>", table.concat(labels) .. "</div>"
end

local function range_of(series)
  local r = { x0 = math.huge, x1 = -math.huge, y0 = math.huge, y1 = -math.huge }
  for _, s in ipairs(series) do
    for _, p in ipairs(s[3]) do
      r.x0, r.x1 = math.min(r.x0, p[1]), math.max(r.x1, p[1])
      r.y0, r.y1 = math.min(r.y0, p[3] or p[2]), math.max(r.y1, p[4] or p[2])
    end
  end
  if r.x0 == math.huge then return nil end
  if r.x1 == r.x0 then r.x1 = r.x0 + 1 end
  return r
end

-- Leaves room above and below. Where no value is negative, the axis is not negative either.
local function linear(r)
  local margin = r.y1 > r.y0 and (r.y1 - r.y0) * 0.05 or math.abs(r.y0) * 0.1 + 1e-9
  return { x0 = r.x0, x1 = r.x1, y0 = r.y0 >= 0 and math.max(0, r.y0 - margin) or r.y0 - margin, y1 = r.y1 + margin }
end

local function logarithmic(r, series)
  local least = math.huge
  for _, s in ipairs(series) do
    for _, p in ipairs(s[3]) do if p[2] > 0 then least = math.min(least, p[2]) end end
  end
  if least == math.huge then return nil end
  return { x0 = r.x0, x1 = r.x1, y0 = least / 1.1, y1 = r.y1 * 1.1 }
end

local function switch(id, class, text, on)
  return ('<input type="checkbox" class="%s" id="%s-%s"%s><label for="%s-%s">%s</label> '):format(
    class, id, class, on and " checked" or "", id, class, text)
end

function charts.draw(title, unit, series, opt)
  opt = opt or {}
  local r = range_of(series)
  if not r then return "" end
  local id = opt.id or title:lower():gsub("[^%w]+", "-")
  local logged = opt.log and logarithmic(r, series)
  local widths, widest = {}, 0  -- of the mean over neighbours: a twenty-fifth of the run
  for i, s in ipairs(series) do
    if opt.smooth and not s.dots and #s[3] >= 30 then
      widths[i] = 2 * math.floor(#s[3] / 50) + 3
      widest = math.max(widest, widths[i])
    end
  end
  local svg, labels = plot("lin", series, linear(r), widths)
  if logged then
    local more_svg, more_labels = plot("log", series, logged, widths)
    svg, labels = svg .. more_svg, labels .. more_labels
  end
  local x_ticks, keys = {}, {}
  for _, x in ipairs(ticks(r.x0, r.x1, not opt.fractions)) do
    x_ticks[#x_ticks + 1] = ('<i style="left:%.1f%%">%s</i>'):format(100 * (x - r.x0) / (r.x1 - r.x0), label(x, r.x1))
  end
  for i, s in ipairs(series) do
    keys[i] = ('<span><b class="s%d%s"></b>%s</span>'):format(s[2], s.dots and " dots" or "", escape(s[1]))
  end
  return table.concat {
    ("<figure><figcaption>%s%s</figcaption>"):format(
      escape(title), unit and " <small>" .. escape(unit) .. "</small>" or ""),
    widest > 0 and switch(id, "smooth", ("smoothed over %d steps"):format(widest), true) or "",
    logged and switch(id, "logarithmic", "log axis", opt.log == "on") or "",
    #series > 1 and '<p class="legend">' .. table.concat(keys) .. "</p>" or "",
    ('<div class="plot">%s<svg viewBox="0 0 %d %d" preserveAspectRatio="none" role="img" aria-label="%s">'):format(
      labels, scale, scale, escape(title)),
    svg, '</svg><div class="x">', table.concat(x_ticks), "</div></div></figure>",
  }
end

return charts
