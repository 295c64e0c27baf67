-- A self-contained page: style, tables, bars, sections. It needs no network. One line of script keeps the check boxes
-- when the page reloads itself.

local charts = require "qeng.report.charts"
local grid = require "qeng.report.grid"
local q = require "qeng.core"

local page = {}
local escape = charts.escape
page.escape = escape

-- Colours of lines, on the light and on the dark background. Each has a contrast of 3 to 1 at least, which WCAG asks of
-- graphics.
page.light = { "#2f6fde", "#c94f24", "#1f8a4d", "#8a4fd0", "#977200", "#0b7f8b", "#c2357b", "#6b7280", "#1b2430",
  "#5a8231", "#4b6a9b", "#b25e10", "#7c3a2d", "#4b3f99" }
page.dark = { "#6ea8ff", "#ff8f66", "#4fd08a", "#bd93f5", "#e0b63a", "#3ec6d3", "#f277b0", "#a3adba", "#e6ebf2",
  "#a5d46a", "#9db4d8", "#f0a75a", "#d98f80", "#9c92f0" }
page.backgrounds = { light = "#fafbfc", dark = "#1a2027" }

local function palette(colours)
  local rules = {}
  for i, colour in ipairs(colours) do rules[i] = (".s%d{color:%s}"):format(i, colour) end
  return table.concat(rules)
end

-- The colour of the i-th of many series.
function page.colour(i) return (i - 1) % #page.light + 1 end

local style = [[
:root{color-scheme:light dark;--text:#1b2430;--soft:#566270;--back:#fff;--box:#fafbfc;--line:#dfe4ea}
@media(prefers-color-scheme:dark){:root{--text:#dde3ea;--soft:#a3adba;--back:#14181d;--box:#1a2027;--line:#36404b}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1360px;margin:1.5rem auto;padding:0 1rem;color:var(--text);
background:var(--back);overflow-wrap:anywhere}
h1{font-size:1.4rem;line-height:1.25}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
small,.soft{color:var(--soft);font-weight:400}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:1.2rem}
figure{margin:0;min-width:0;font-size:13px}figcaption{font-weight:600;font-size:15px}
.legend{margin:.2rem 0}.legend span{margin-right:1rem;white-space:nowrap}
.legend b{display:inline-block;width:1.2rem;height:0;border-top:3px solid currentColor;margin-right:.4rem;
vertical-align:middle}
.legend b.dots{width:.6rem;height:.6rem;border:0;border-radius:50%;background:currentColor}
.plot{position:relative;margin:.5rem 1rem 1.6rem 3.2rem}
.plot svg{display:block;width:100%;height:14rem;background:var(--box);outline:1px solid var(--line);overflow:visible}
.y,.x{color:var(--soft);font-size:12px}.plot i{position:absolute;white-space:nowrap;font-style:normal;line-height:1}
.y i{right:100%;margin:-.5em .4rem 0 0}.x i{top:100%;transform:translateX(-50%);margin-top:.4rem}
.line,.dot,.grid{fill:none;vector-effect:non-scaling-stroke}
.line{stroke:currentColor;stroke-width:1.6;stroke-linejoin:round}
.dot{stroke:currentColor;stroke-width:6.5;stroke-linecap:round}.grid{stroke:var(--line)}
.log,.mean,.logarithmic:checked~.plot .lin{display:none}
.logarithmic:checked~.plot .log,.smooth:checked~.plot .mean{display:inline}
.smooth:checked~.plot .raw{opacity:.3;stroke-width:1}.smooth:checked~.plot .mean{stroke-width:2.2}
label{margin-right:.8rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0}
td,th{text-align:left;vertical-align:top;padding:.15rem 1.2rem .15rem 0;border-bottom:1px solid var(--line);
overflow-wrap:normal}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.wide{overflow-wrap:anywhere;min-width:12rem}.mark td{font-weight:600}
.bars{display:grid;grid-template-columns:auto 1fr auto;gap:.1rem .7rem;align-items:center;max-width:60rem}
.bars b{height:.8rem;background:currentColor}
pre{background:var(--box);border:1px solid var(--line);padding:.6rem;white-space:pre-wrap;font-size:13px}
@media(max-width:500px){td,th{padding-right:.7rem;font-size:13px}}
.state{border-left:4px solid;padding-left:.7rem}
]]

local script = '<script>document.querySelectorAll("input[id]").forEach(function(e){try{' ..
  'var k=sessionStorage.getItem(e.id);if(k)e.checked=k=="1";' ..
  'e.onchange=function(){sessionStorage.setItem(e.id,e.checked?"1":"0")}}catch(x){}})</script>'

-- columns, rows: as in report/grid.lua.
function page.table(columns, rows)
  local class, lines = {}, {}
  for c, figures in ipairs(grid.figures(columns, rows)) do class[c] = figures and ' class="n"' or "" end
  local function line(cells, tag, mark)
    local parts = {}
    for c = 1, #columns do
      local cell = tostring(cells[c] == nil and "" or cells[c])
      local wide = class[c] == "" and #cell > 40 and ' class="wide"' or class[c]
      parts[c] = ("<%s%s>%s</%s>"):format(tag, wide, escape(cell), tag)
    end
    return ("<tr%s>%s</tr>"):format(mark and ' class="mark"' or "", table.concat(parts))
  end
  for i, row in ipairs(rows) do lines[i] = line(row, "td", row.mark) end
  local head = table.concat(columns) ~= "" and line(columns, "th") or ""
  return '<div class="scroll"><table>' .. head .. table.concat(lines) .. "</table></div>"
end

-- rows: { {name, value, text}... }
function page.bars(rows)
  local most, lines = 0, {}
  for _, row in ipairs(rows) do most = math.max(most, row[2]) end
  for i, row in ipairs(rows) do
    lines[i] =
        ('<span class="n">%s</span><b class="s1" style="width:max(%dpx,%.1f%%)"></b><span class="n">%s</span>'):format(
      escape(row[1]), row[2] > 0 and 2 or 0, most > 0 and 100 * row[2] / most or 0, escape(row[3]))
  end
  return '<div class="bars">' .. table.concat(lines) .. "</div>"
end

function page.paragraphs(text)
  return (escape(text):gsub("[^\n]+", "<p>%0</p>"))
end

-- Writes a page. parts: HTML, sections (page.section) and groups of charts, { charts = { ... } }, in order. opt.reload:
-- seconds after which the page reads itself again.
function page.write(path, title, parts, opt)
  local body = {}
  for i, part in ipairs(parts) do
    body[i] = type(part) == "string" and part or part.charts and "<main>" .. table.concat(part.charts) .. "</main>" or
      page.section(part)
  end
  q.fs.write(path, table.concat {
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
    opt and opt.reload and ('<meta http-equiv="refresh" content="%d">'):format(opt.reload) or "", "<title>",
    escape(title), "</title><style>", style,
    palette(page.light), "@media(prefers-color-scheme:dark){", palette(page.dark), "}</style><h1>", escape(title),
    "</h1>", table.concat(body), script, "</html>\n",
  })
end

local function html_of(part)
  if type(part) == "string" then return page.paragraphs(part) end
  return part.bars and page.bars(part.bars) or page.table(part[1], part[2])
end

-- A heading and what follows: {title, text} is monospaced, {title, html =} stays as it is. Of {title, parts = {...}} a
-- string is paragraphs, {columns, rows} a table, {bars =} bars; grid.sections says the same on the terminal.
function page.section(section)
  local parts = {}
  for i, part in ipairs(section.parts or {}) do parts[i] = html_of(part) end
  local html = section.parts and table.concat(parts) or section.html
  return ("<h2>%s</h2>%s"):format(escape(section[1]), html or "<pre>" .. escape(section[2]) .. "</pre>")
end

return page
