-- A table of cells, as text for the terminal (grid.text) or as HTML (page.table). columns is a list of names; rows is a
-- list of lists of cells. mark = true makes a row stand out. Columns of figures are set to the right.

local grid = {}

local function text_of(cell) return tostring(cell == nil and "" or cell) end

-- For each column: does it hold figures only ("12", "3.4 %", "1.20 k tok/s", "0.1 +- 0.2", "none", "-")?
function grid.figures(columns, rows)
  local found = {}
  for c = 1, #columns do
    found[c] = #rows > 0
    for _, row in ipairs(rows) do
      local cell = text_of(row[c])
      local figure = cell == "" or cell == "-" or cell == "none" or #cell <= 36 and cell:find "^[-+]?%d" and
        not cell:find "^0x"
      found[c] = found[c] and figure and true or false
    end
  end
  return found
end

function grid.text(columns, rows)
  local widths, figures, lines = {}, grid.figures(columns, rows), {}
  for c, name in ipairs(columns) do
    widths[c] = #name
    for _, row in ipairs(rows) do widths[c] = math.max(widths[c], #text_of(row[c])) end
  end
  local function line(cells, mark)
    local parts = {}
    for c = 1, #columns do
      local cell = text_of(cells[c])
      local space = (" "):rep(widths[c] - #cell)
      parts[c] = figures[c] and space .. cell or cell .. space
    end
    return (table.concat(parts, "  "):gsub("%s+$", "")) ..
      (mark and "   <- " .. (type(mark) == "string" and mark or "chosen") or "")
  end
  lines[1] = line(columns)
  for i, row in ipairs(rows) do lines[i + 1] = line(row, row.mark) end
  return table.concat(lines, "\n")
end

function grid.markdown(columns, rows)
  local lines = { "| " .. table.concat(columns, " | ") .. " |", "|" .. ("---|"):rep(#columns) }
  for i, row in ipairs(rows) do lines[i + 2] = "| " .. table.concat(row, " | ") .. " |" end
  return table.concat(lines, "\n")
end

-- Sections of a page (page.section) that have parts, for the terminal: {{title, text}...}. `in_text` has the text of
-- parts that only a page can show.
function grid.sections(sections)
  local list = {}
  for i, section in ipairs(sections) do
    local texts = {}
    for _, part in ipairs(section.parts) do
      local text = type(part) == "table" and (part.in_text or grid.text(part[1], part[2])) or part
      if text ~= "" then texts[#texts + 1] = text end
    end
    list[i] = { section[1], table.concat(texts, "\n") }
  end
  return list
end

return grid
