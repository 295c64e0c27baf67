-- How q.profile and q.memory print: plain tables, the largest figures first.

local progress = require "qeng.console.progress"
local q = require "qeng.core"

local function rows_text(title, rows)
  local heads = { "calls", "ms", "% time", "GFLOP/s", "GB/s", "share" }
  local lines = { ("%-24s %7s %10s %7s %10s %9s %6s"):format(title, unpack(heads)) }
  local total = 0
  for _, row in ipairs(rows) do total = total + row.ms end
  for _, row in ipairs(rows) do
    local ms = math.max(row.ms, 1e-9)
    lines[#lines + 1] = ("%-24s %7d %10.2f %6.1f%% %10.1f %9.2f %5.0f%%"):format(
      row.name == "" and "(outside)" or row.name, row.calls, row.ms, 100 * row.ms / math.max(total, 1e-9),
      row.flops / ms / 1e6, row.bytes / ms / 1e6, 100 * row.share)
  end
  return table.concat(lines, "\n")
end

local profile_table = {
  __name = "q.profile",
  __tostring = function(p)
    return rows_text("operation", p.ops) .. "\n\n" .. rows_text("block", p.blocks)
      .. ("\n\n%.2f ms, %.0f %% of the device's measured limit (share: time at the limit over time taken)"):format(
        p.total_ms, 100 * p.share)
  end,
}

local memory_table = {
  __name = "q.memory",
  __tostring = function(m)
    local names = {}
    for name in pairs(m) do names[#names + 1] = name end
    table.sort(names, function(a, b) return m[a].peak > m[b].peak or (m[a].peak == m[b].peak and a < b) end)
    local lines = { ("%-24s %12s %12s"):format("memory", "now", "peak") }
    for _, name in ipairs(names) do
      lines[#lines + 1] = ("%-24s %12s %12s"):format(name, progress.bytes(m[name].bytes), progress.bytes(m[name].peak))
    end
    return table.concat(lines, "\n")
  end,
}

local profile, memory = q.profile, q.memory
function q.profile(...) return setmetatable(profile(...), profile_table) end
function q.memory() return setmetatable(memory(), memory_table) end

local Program = debug.getregistry()["qeng.Program"].__index
local of_program = Program.profile
function Program:profile() return setmetatable(of_program(self), profile_table) end
