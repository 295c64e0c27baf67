-- Figures in Prometheus' text form (https://prometheus.io/docs/instrumenting/exposition_formats).

local metrics = {}
local Metrics = {}
Metrics.__index = Metrics

-- Seconds: from a token of a small model to a long answer of a large one.
local bounds = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300 }

function metrics.new() return setmetatable({ kinds = {}, order = {}, values = {} }, Metrics) end

-- Declares a figure before it is written. kind: "counter", "gauge" or "histogram"; read: a function that gives a gauge
-- or a counter its value when it is asked for: a number, or {[labels] = number}.
function Metrics:declare(name, kind, help, read)
  self.kinds[name] = { kind = kind, help = help, read = read }
  self.order[#self.order + 1] = name
  self.values[name] = {}
end

local escapes = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }
local function escaped(text) return (tostring(text):gsub('[\\"\n]', escapes)) end

-- {status = 200, path = "/x"} as path="/x",status="200".
function metrics.labels(list)
  local all = {}
  for name, value in pairs(list or {}) do all[#all + 1] = ('%s="%s"'):format(name, escaped(value)) end
  table.sort(all)
  return table.concat(all, ",")
end

local function cell(self, name, labels)
  local key, values = metrics.labels(labels), assert(self.values[name], name)
  if values[key] == nil then
    values[key] = self.kinds[name].kind == "histogram" and { sum = 0, count = 0 } or { 0 }
  end
  return values[key]
end

function Metrics:add(name, amount, labels)
  local found = cell(self, name, labels)
  found[1] = found[1] + (amount or 1)
end

function Metrics:observe(name, value, labels)
  local found, i = cell(self, name, labels), 1
  while bounds[i] and value > bounds[i] do i = i + 1 end
  found[i], found.sum, found.count = (found[i] or 0) + 1, found.sum + value, found.count + 1
end

local function line(out, name, labels, value)
  out[#out + 1] = labels == "" and ("%s %.17g"):format(name, value) or ("%s{%s} %.17g"):format(name, labels, value)
end

local function histogram(out, name, key, found)
  local total, before = 0, key == "" and "" or key .. ","
  for i = 1, #bounds + 1 do
    total = total + (found[i] or 0)
    local bound = bounds[i] and ("%g"):format(bounds[i]) or "+Inf"
    line(out, name .. "_bucket", ('%sle="%s"'):format(before, bound), total)
  end
  line(out, name .. "_sum", key, found.sum)
  line(out, name .. "_count", key, found.count)
end

function Metrics:text()
  local out = {}
  for _, name in ipairs(self.order) do
    local about, values = self.kinds[name], self.values[name]
    out[#out + 1] = ("# HELP %s %s"):format(name, about.help)
    out[#out + 1] = ("# TYPE %s %s"):format(name, about.kind)
    if about.read then
      local found = about.read()
      values = {}
      for key, value in pairs(type(found) == "table" and found or { [""] = found }) do values[key] = { value } end
    end
    local keys = {}
    for key in pairs(values) do keys[#keys + 1] = key end
    table.sort(keys)
    for _, key in ipairs(keys) do
      if about.kind == "histogram" then histogram(out, name, key, values[key])
      else line(out, name, key, values[key][1]) end
    end
  end
  return table.concat(out, "\n") .. "\n"
end

return metrics
