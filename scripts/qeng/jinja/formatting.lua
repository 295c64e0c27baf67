-- Formats a template can use: '%s and %d' % values, and '{} and {name:>8.2f}'.format(...).

local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local strings = require "qeng.jinja.strings"
local text = require "qeng.jinja.text"
local values = require "qeng.jinja.values"

local formatting = {}

local fail = limits.fail

local function grouped(digits, mark)
  local whole, rest = digits:match "^(%d+)(.*)$"
  whole = whole:reverse():gsub("(%d%d%d)", "%1" .. mark):reverse()
  return (whole:gsub("^" .. mark:gsub("%p", "%%%0"), "")) .. rest
end

-- A number's magnitude, written as kind says (one of d, x, X, o, f, F, e, E, g, G, %).
local function magnitude(v, kind, precision)
  local x = math.abs(numbers.value(v))
  if kind == "%" then return magnitude(numbers.float(x * 100), "f", precision) .. "%" end
  if ("dxXo"):find(kind, 1, true) then
    if type(v) == "table" and v.digits and kind == "d" then return (v.digits:gsub("^-", "")) end
    return ("%" .. kind):format(numbers.value(numbers.truncated(x)))
  end
  if x == math.huge then return "inf" elseif x ~= x then return "nan" end
  precision = math.min(precision or 6, 99)
  return ("%%.%d%s"):format(precision, kind):format(kind:lower() == "f" and numbers.rounded(x, precision) or x)
end

-- spec: fill, align, sign, zero, width, mark, precision, kind.
local function written(v, spec)
  local kind, sign, body = spec.kind, ""
  local number = numbers.value(v)
  if kind == "s" or kind == "" and (not number or type(v) == "boolean") then
    body = text.str(v)
    if spec.precision then body = strings.sub(body, 1, spec.precision) end
    number = nil
  else
    if not number then fail("%s cannot be formatted as a number", values.kind(v)) end
    if number < 0 then sign = "-" elseif spec.sign == "+" or spec.sign == " " then sign = spec.sign end
    if kind == "d" and numbers.is_float(v) then fail "a float is formatted as an integer" end
    if kind == "" and not spec.precision then
      body = numbers.text(v):gsub("^-", "")
    else
      body = magnitude(v, kind == "" and "g" or kind, spec.precision)
    end
    if spec.mark then body = grouped(body, spec.mark) end
  end
  local align = spec.align or (number and ">" or "<")
  local fill = spec.fill or " "
  if spec.zero and number and not spec.align then align, fill = "=", "0" end
  local width = spec.width or 0
  if align == "=" then return sign .. strings.padded(body, width - #sign, fill, "right") end
  local side = align == "<" and "left" or align == ">" and "right" or "center"
  if side ~= "center" then return strings.padded(sign .. body, width, fill, side) end
  local more = math.max(width - strings.length(sign .. body), 0)
  return strings.times(fill, math.floor(more / 2)) .. sign .. body .. strings.times(fill, math.ceil(more / 2))
end

-- format % v: v is a tuple of values, a dict for %(name)s, or one value.
function formatting.percent(format, v)
  local arguments, used, parts, at = values.kind(v) == "tuple" and v or { v }, 0, {}, 1
  while true do
    local place = format:find("%", at, true)
    parts[#parts + 1] = format:sub(at, (place or 0) - 1)
    if not place then break end
    local name, after = format:match("^%(([^)]*)%)()", place + 1)
    local flags, width, precision, kind, stop = format:match("^([-+ #0]*)(%d*)(%.?%d*)(.)()", after or place + 1)
    if not kind or not ("%sridufFeEgGxXo"):find(kind, 1, true) then
      fail("'%s': not a format that is supported", format:sub(place, place + 10))
    end
    at = stop
    if kind == "%" then
      parts[#parts + 1] = "%"
    else
      used = used + 1
      local value
      if name then value = values.is_dict(v) and values.get(v, name) or nil else value = arguments[used] end
      if value == nil then fail("no argument for the format '%s'", format:sub(place, stop - 1)) end
      if kind == "r" then value, kind = text.repr(value), "s" end
      if kind == "i" or kind == "u" then kind = "d" end
      if kind == "d" then
        if not numbers.value(value) then fail("%%d of a %s", values.kind(value)) end
        value = numbers.truncated(value)
      end
      local left = flags:find("-", 1, true)
      parts[#parts + 1] = written(value, {
        kind = kind, width = tonumber(width), align = left and "<" or kind == "s" and ">" or nil,
        precision = precision ~= "" and (tonumber(precision:sub(2)) or 0) or nil,
        zero = flags:find("0", 1, true) and not left,
        sign = flags:find("+", 1, true) and "+" or flags:find(" ", 1, true) and " " or nil,
      })
    end
  end
  local kind = values.kind(v)
  -- Python lets values that have items be left over.
  local may_be_left = kind == "dict" or kind == "list" or kind == "range" or kind == "undefined"
  if used < #arguments and not may_be_left then fail "not all arguments of a format are used" end
  return limits.collected(function(put) for _, part in ipairs(parts) do put(part) end end)
end

-- access: {attribute, item}, for {a.b[0]}. arguments, named: those of the call.
function formatting.format(format, arguments, named, access)
  local count, parts, at = 0, {}, 1
  local function value_of(field)
    local first, rest = field:match "^([^%.%[]*)(.*)$"
    local v
    if first == "" then
      count = count + 1
      v = arguments[count]
    elseif first:find "^%d+$" then
      v = arguments[tonumber(first) + 1]
    else
      v = named[first]
    end
    if v == nil then fail("str.format: no argument for {%s}", field) end
    while rest ~= "" do
      local name, after = rest:match "^%.([^%.%[]+)(.*)$"
      if name then v = access.attribute(v, name)
      else
        name, after = rest:match "^%[([^%]]+)%](.*)$"
        if not name then fail("str.format: {%s} cannot be read", field) end
        v = access.item(v, tonumber(name) or name)
      end
      rest = after
    end
    return v
  end
  while at <= #format do
    local open = format:find("[{}]", at)
    parts[#parts + 1] = format:sub(at, (open or 0) - 1)
    if not open then break end
    local c = format:sub(open, open)
    if format:sub(open + 1, open + 1) == c then
      parts[#parts + 1], at = c, open + 2
    else
      local field, close = format:match("^{([^{}]*)}()", open)
      if not field then fail "str.format: a single brace" end
      local name, conversion, spec = field:match "^([^!:]*)!?([rs]?):?(.*)$"
      local v = value_of(name)
      if conversion == "r" then v = text.repr(v) elseif conversion == "s" then v = text.str(v) end
      if spec == "" then parts[#parts + 1] = text.str(v)
      else
        local fill, align, rest = spec:match "^([^%d<>=^]?)([<>=^])(.*)$"
        if not align then fill, rest = "", spec end
        if rest == nil then fill, align, rest = "", nil, spec end
        local sign, zero, width, mark, precision, kind = rest:match "^([-+ ]?)(0?)(%d*)([,_]?)(%.?%d*)([a-zA-Z%%]?)$"
        if not sign or kind ~= "" and not ("sdfFeEgGxXo%"):find(kind, 1, true) then
          fail("str.format: the format '%s' is not supported", spec)
        end
        parts[#parts + 1] = written(v, {
          kind = kind, fill = fill ~= "" and fill or nil, align = align, sign = sign, zero = zero == "0",
          width = tonumber(width), mark = mark ~= "" and mark or nil, precision = tonumber(precision:sub(2)),
        })
      end
      at = close
    end
  end
  return limits.collected(function(put) for _, part in ipairs(parts) do put(part) end end)
end

return formatting
