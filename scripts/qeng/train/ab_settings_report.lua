-- What train/ab_settings.lua found of two settings, or of a list of pairs: as text and as a page.

local charts = require "qeng.report.charts"
local grid = require "qeng.report.grid"
local page = require "qeng.report.page"

local report = {}

local function size(bytes)
  if bytes >= 1e9 then return ("%.2f GB"):format(bytes / 1e9) end
  return bytes >= 1e5 and ("%.1f MB"):format(bytes / 1e6) or ("%.1f kB"):format(bytes / 1e3)
end
local function rate(n) return n >= 1e4 and ("%.1f k"):format(n / 1e3) or ("%.0f"):format(n) end

-- In a few words, for a cell of a table.
function report.verdict(found)
  if found.design then return "differ by design" end
  if found.equal then return "equal to the bit" end
  if found.loss <= found.bound and not found.within then
    return ("parameters %.1e, BEYOND %.0e"):format(found.parameters, found.parameters_bound)
  end
  return ("%.1e, %s %.0e"):format(found.loss, found.within and "within" or "BEYOND", found.bound)
end

local function sentence(found)
  if found.design then return "Losses are not compared, they differ by design: " .. found.design .. "." end
  if found.equal then
    return ("Equal to the bit: losses, gradient norms and trained parameters of %d steps."):format(found.steps)
  end
  local where = found.first
    and ("Losses or gradient norms first differ at step %d of %d."):format(found.first, found.steps)
    or ("Losses and gradient norms of %d steps are equal to the bit, trained parameters are not."):format(found.steps)
  return where .. ("\nLargest relative differences: loss %.2g, gradient norm %.2g, a trained tensor %.2g.\n%s"):format(
    found.loss, found.norm, found.parameters,
    ("%s what rounding in %s explains%s: %.0e for losses, %.0e for parameters."):format(
      found.within and "Within" or "BEYOND", found.dtype,
      found.experts and ", which may send tokens to other experts" or "", found.bound, found.parameters_bound))
end

local function costs_table(found)
  local a, b = found.a, found.b
  local rows = {
    { "ms a step, median", ("%.2f"):format(a.ms), ("%.2f"):format(b.ms), ("%.3f"):format(a.ms / b.ms) },
    { "ms a step, least", ("%.2f"):format(a.least), ("%.2f"):format(b.least), ("%.3f"):format(a.least / b.least) },
    { "real tokens a second", rate(a.tok_s), rate(b.tok_s), ("%.3f"):format(b.tok_s / a.tok_s) },
    { "slots that are real tokens", ("%.1f %%"):format(100 * a.full), ("%.1f %%"):format(100 * b.full),
      ("%.3f"):format(b.full / a.full) },
    { "peak memory, accounts together", size(a.peak), size(b.peak), ("%.3f"):format(a.peak / b.peak) },
  }
  local names = {}
  for name in pairs(a.memory) do names[#names + 1] = name end
  for name in pairs(b.memory) do if not a.memory[name] then names[#names + 1] = name end end
  table.sort(names)
  for _, name in ipairs(names) do
    local one, other = a.memory[name] or 0, b.memory[name] or 0
    rows[#rows + 1] = { "  " .. name, size(one), size(other), other > 0 and ("%.3f"):format(one / other) or "-" }
  end
  return { { "", "a: " .. a.text, "b: " .. b.text, "b is better by" }, rows }
end

-- found: of compare; or a list of {what, found}.
local function sections(found, how)
  if not found[1] then
    return {
      { "Losses", parts = { sentence(found) } },
      { "Costs", parts = { costs_table(found),
        ("Speed-up of b over a, step by step: %.3f (median)"):format(found.speedup) } },
      { "How it was done", parts = { how } },
    }
  end
  local rows, notes = {}, {}
  for i, each in ipairs(found) do
    local one = each[2]
    if one.a.full ~= one.b.full then
      notes[#notes + 1] = ("With %s %.1f %% of the slots are real tokens, with %s %.1f %%: the more lengths differ, "
        .. "the more packing brings."):format(one.a.text, 100 * one.a.full, one.b.text, 100 * one.b.full)
    end
    rows[i] = { each[1], one.a.text, ("%.2f"):format(one.a.ms), ("%.2f"):format(one.b.ms),
      ("%.3f"):format(one.speedup), size(one.a.peak), size(one.b.peak), report.verdict(one) }
  end
  return {
    { "One at a time", parts = {
      { { "what", "without", "ms", "ms with", "speed-up", "peak", "peak with", "losses" }, rows },
      table.concat(notes, "\n"),
      "Speed-ups are of this program over itself. They do not multiply, and none is claimed from a library that was "
        .. "missing." } },
    { "How it was done", parts = { how } },
  }
end

-- {{title, text}...} for the terminal.
function report.sections(found, how) return grid.sections(sections(found, how)) end

local function points(values, from, factor)
  local list = {}
  for i = from, #values do list[#list + 1] = { i, values[i] * factor } end
  return list
end

function report.write(path, found, how)
  local figures = {}
  for _, each in ipairs(found[1] and found or { { "Settings a and b", found } }) do
    local a, b = each[2].a, each[2].b
    local function both(key, from, factor)
      return { { a.text, 2, points(a[key], from, factor) }, { b.text, 1, points(b[key], from, factor) } }
    end
    figures[#figures + 1] = charts.draw(each[1] .. ": loss", "over steps", both("losses", 1, 1))
    figures[#figures + 1] = charts.draw(each[1] .. ": time", "ms of a step", both("seconds", 2, 1e3))
  end
  local parts = sections(found, how)
  table.insert(parts, 1, { charts = figures })
  page.write(path, "Settings side by side", parts)
end

return report
