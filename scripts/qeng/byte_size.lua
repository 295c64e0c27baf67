-- Sizes of memory as users write them: 8G and 8GB are 8e9 bytes (as sizes are printed), 8GiB is 8 * 2^30; k, M, T likewise.

local q = require "qeng.core"

local powers = { [""] = 0, k = 1, m = 2, g = 3, t = 4 }

-- Bytes of "8G" or of a number; nil of nil and "". name: of the option, for the error.
return function(value, name)
  if value == nil or value == "" then return nil end
  local number, unit, binary
  if type(value) == "number" then
    number, unit, binary = value, "", ""
  else
    number, unit, binary = tostring(value):lower():match "^([%d.]+)%s*([kmgt]?)(i?)b?$"
    number = tonumber(number)
  end
  if not number or number <= 0 or number == math.huge or (binary == "i" and unit == "") then
    q.error("value", ("%s = %s: expected a size such as 8G, 500M or 8GiB"):format(name, tostring(value)))
  end
  return math.floor(number * (binary == "i" and 1024 or 1000) ^ powers[unit])
end
