-- Python's calls: arguments in order and by name.

local limits = require "qeng.jinja.limits"

local calls = {}

local fail = limits.fail

-- The arguments in the order of the parameters (a list of names), nil where none is given.
local function bound(name, parameters, arguments, named)
  if #arguments > #parameters then fail("%s takes at most %d arguments, got %d", name, #parameters, #arguments) end
  local out = {}
  for i = 1, #arguments do out[i] = arguments[i] end
  for key, value in pairs(named) do
    local place
    for i, parameter in ipairs(parameters) do if parameter == key then place = i end end
    if not place then fail("%s has no argument '%s'", name, tostring(key)) end
    if out[place] ~= nil then fail("%s: argument '%s' is given twice", name, key) end
    out[place] = value
  end
  return out
end

-- Makes a filter, test or method of fn: a function (v, arguments, named) that calls fn(v, ...) with the arguments in
-- order. parameters: their names, "a b / c"; those before "/" are needed.
function calls.of_value(name, parameters, fn)
  local needed, names = 0, {}
  for word in parameters:gmatch "%S+" do
    if word == "/" then needed = #names else names[#names + 1] = word end
  end
  local count = #names
  return function(v, arguments, named)
    local out = bound(name, names, arguments, named)
    for i = 1, needed do if out[i] == nil then fail("%s needs the argument '%s'", name, names[i]) end end
    return fn(v, unpack(out, 1, count))
  end
end

-- The same for functions that belong to no value: (arguments, named).
function calls.native(name, parameters, fn)
  local call = calls.of_value(name, parameters, function(_, ...) return fn(...) end)
  return function(arguments, named) return call(nil, arguments, named) end
end

return calls
