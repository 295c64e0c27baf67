-- Python's numbers. An int is a Lua number without a fraction, up to 2^53. A float is a Lua number with a fraction, or
-- a boxed one without (1.0, inf). A longer int keeps its digits, to be printed and compared; arithmetic with it is
-- refused.

local limits = require "qeng.jinja.limits"

local numbers = {}

local fail = limits.fail
local Float, Long = { kind = "float" }, { kind = "int" }
local most = 2 ^ 53

-- A Lua number as a float.
function numbers.float(x) return x == math.floor(x) and setmetatable({ x }, Float) or x end

-- A Lua number as an int. Beyond 2^53 it is given by its digits.
function numbers.int(x)
  if x ~= x or math.abs(x) > most then fail "an integer beyond 2^53 is reckoned with" end
  return x + 0
end
function numbers.digits(text)
  local x = tonumber(text)
  if math.abs(x) <= most then return x end
  local sign, digits = text:match "^([-+]?)0*(%d+)$"
  return setmetatable({ x, digits = (sign == "-" and "-" or "") .. digits }, Long)
end

-- The nearest Lua number; nil if v is no number. True and False are 1 and 0.
function numbers.value(v)
  if type(v) == "number" then return v end
  if type(v) == "boolean" then return v and 1 or 0 end
  local meta = type(v) == "table" and getmetatable(v)
  return (meta == Float or meta == Long) and v[1] or nil
end
function numbers.is_float(v) return getmetatable(v) == Float or type(v) == "number" and v ~= math.floor(v) end
local function is_long(v) return getmetatable(v) == Long end

function numbers.equal(a, b)
  if is_long(a) and is_long(b) then return a.digits == b.digits end
  if is_long(a) then return a.digits == ("%.0f"):format(numbers.value(b)) end
  if is_long(b) then return b.digits == ("%.0f"):format(numbers.value(a)) end
  return numbers.value(a) == numbers.value(b)
end
function numbers.less(a, b)
  if is_long(a) and is_long(b) and #a.digits == #b.digits and a[1] > 0 and b[1] > 0 then return a.digits < b.digits end
  return numbers.value(a) < numbers.value(b)
end

-- ---------------------------------------------------------------- text

-- The fewest digits that read back as x, and the power of ten of the first.
local function shortest(x)
  for precision = 0, 16 do
    local text = ("%%.%de"):format(precision):format(x)
    if tonumber(text) == x then
      local digits, exponent = text:match "^(.*)e(.*)$"
      return (digits:gsub("%.", "")), tonumber(exponent)
    end
  end
end

-- x as Python prints a float.
local function float_text(x)
  if x ~= x then return "nan" end
  if x == math.huge then return "inf" elseif x == -math.huge then return "-inf" end
  local sign = (x < 0 or 1 / x < 0) and "-" or ""
  local digits, exponent = shortest(math.abs(x))
  if exponent < -4 or exponent >= 16 then
    local rest = digits:sub(2)
    return ("%s%s%se%s%02d"):format(sign, digits:sub(1, 1), rest ~= "" and "." .. rest or "",
      exponent < 0 and "-" or "+", math.abs(exponent))
  end
  if exponent < 0 then return sign .. "0." .. ("0"):rep(-exponent - 1) .. digits end
  local whole = digits .. ("0"):rep(exponent + 1 - #digits)
  local fraction = whole:sub(exponent + 2)
  return sign .. whole:sub(1, exponent + 1) .. "." .. (fraction ~= "" and fraction or "0")
end

function numbers.text(v)
  if is_long(v) then return v.digits end
  if numbers.is_float(v) then return float_text(numbers.value(v)) end
  return ("%d"):format(v)
end

-- The int or float that a text spells in Python, or nil.
function numbers.int_of_text(text)
  local digits = text:match "^%s*([-+]?%d[%d_]*)%s*$"
  return digits and not digits:find "__" and not digits:find "_$" and numbers.digits((digits:gsub("_", ""))) or nil
end
function numbers.float_of_text(text)
  local word = text:lower():match "^%s*(%S+)%s*$"
  local sign, name = (word or ""):match "^([-+]?)(%a+)$"
  if name == "inf" or name == "infinity" then return numbers.float(sign == "-" and -math.huge or math.huge) end
  if name == "nan" then return 0 / 0 end
  if not word or not word:find "^[-+]?%d*%.?%d*e?[-+]?%d*$" or not tonumber(word) then return nil end
  return numbers.float(tonumber(word))
end

-- x as an int, rounded towards zero.
function numbers.truncated(v)
  if is_long(v) then return v end
  local x = numbers.value(v)
  return numbers.int(x < 0 and math.ceil(x) or math.floor(x))
end

-- x rounded to so many decimals, half to even, as round() does.
function numbers.rounded(x, decimals)
  if x ~= x or math.abs(x) == math.huge then return x end
  if decimals >= 0 and decimals < 20 then
    local scaled = x * 10 ^ decimals
    if x * 2 ^ (decimals + 1) % 1 == 0 and scaled % 1 == 0.5 then  -- just between two: to the even one
      local below = math.floor(scaled)
      return (below % 2 == 0 and below or below + 1) / 10 ^ decimals
    end
  end
  if decimals >= 0 then return tonumber(("%%.%df"):format(math.min(decimals, 99)):format(x)) end
  local scale = 10 ^ -decimals
  return tonumber(("%.0f"):format(x / scale)) * scale
end

-- ---------------------------------------------------------------- arithmetic

local function zero(y) if y == 0 then fail "division by zero" end end

-- The remainder with y's sign. Lua's x % y loses digits.
local function remainder(x, y)
  zero(y)
  local rest = math.fmod(x, y)
  if rest == 0 then return y < 0 and -0.0 or 0 end
  return (rest < 0) ~= (y < 0) and rest + y or rest
end

local function quotient(x, y)
  local whole = (x - remainder(x, y)) / y
  local below = math.floor(whole)
  return whole - below > 0.5 and below + 1 or below
end

local operations = {
  ["+"] = function(x, y) return x + y end,
  ["-"] = function(x, y) return x - y end,
  ["*"] = function(x, y) return x * y end,
  ["//"] = quotient,
  ["%"] = remainder,
  ["**"] = function(x, y) return x ^ y end,
}

-- a op b, where op is Python's operator.
function numbers.arithmetic(op, a, b)
  local x, y = numbers.value(a), numbers.value(b)
  if is_long(a) or is_long(b) then fail "an integer beyond 2^53 is reckoned with" end
  if op == "/" then
    zero(y)
    return numbers.float(x / y)
  end
  local float = numbers.is_float(a) or numbers.is_float(b) or op == "**" and y < 0
  if op == "**" and x == 0 and y < 0 then fail "division by zero" end
  local result = operations[op](x, y)
  if op == "**" and math.abs(result) == math.huge and math.abs(x) < math.huge and math.abs(y) < math.huge then
    fail "a power is too large"
  end
  if result ~= result and x == x and y == y then fail "a root of a negative number" end
  if float then return numbers.float(result) end
  return numbers.int(result)
end

function numbers.negative(v)
  if is_long(v) then return numbers.digits(v.digits:sub(1, 1) == "-" and v.digits:sub(2) or "-" .. v.digits) end
  local x = numbers.value(v)
  return numbers.is_float(v) and numbers.float(-x) or 0 - x
end

return numbers
