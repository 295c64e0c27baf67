-- How q.profile, q.memory and Tensor:describe print.

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

local description = {
  __name = "Tensor:describe",
  __tostring = function(d)
    local lines = { ("%s [%s], %d elements"):format(d.dtype, table.concat(d.shape, ", "), d.elements) }
    local function add(name, format, ...) lines[#lines + 1] = ("  %-10s " .. format):format(name, ...) end
    add("min, max", "%.6g, %.6g", d.min, d.max)
    add("mean, std", "%.6g, %.6g", d.mean, d.std)
    local levels, shares, values = {}, {}, {}
    for level in pairs(d.quantiles) do levels[#levels + 1] = level end
    table.sort(levels)
    for i, level in ipairs(levels) do
      shares[i], values[i] = ("%g %%"):format(100 * level), ("%.6g"):format(d.quantiles[level])
    end
    add("quantiles", "%s: %s", table.concat(shares, ", "), table.concat(values, ", "))
    local function share(n) return 100 * n / math.max(d.elements, 1) end
    add("zeros", "%d (%.3g %%)", d.zeros, share(d.zeros))
    add("not finite", "%d NaN, %d infinite", d.nan, d.inf)
    return table.concat(lines, "\n")
  end,
}

local profile, memory, describe = q.profile, q.memory, q.Tensor.describe
function q.profile(...) return setmetatable(profile(...), profile_table) end
function q.memory() return setmetatable(memory(), memory_table) end
function q.Tensor:describe() return setmetatable(describe(self), description) end

local Program = debug.getregistry()["qeng.Program"].__index
local of_program = Program.profile
function Program:profile() return setmetatable(of_program(self), profile_table) end
