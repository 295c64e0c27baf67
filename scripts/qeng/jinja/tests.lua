-- Jinja's tests, which stand after "is": functions (v, arguments, named).

local calls = require "qeng.jinja.calls"
local limits = require "qeng.jinja.limits"
local numbers = require "qeng.jinja.numbers"
local q = require "qeng.core"
local text = require "qeng.jinja.text"
local values = require "qeng.jinja.values"

local tests = {}

local function define(names, parameters, fn)
  for name in names:gmatch "%S+" do tests[name] = calls.of_value(name, parameters, fn) end
end

local function number(v) return numbers.value(v) or limits.fail("a %s is no number", values.kind(v)) end
local function is_number(v) return numbers.value(v) ~= nil and type(v) ~= "boolean" end
local sized = { str = true, list = true, tuple = true, range = true, dict = true, undefined = true }
local iterable = { view = true, generator = true }

define("defined", "", function(v) return not values.is_undefined(v) end)
define("undefined", "", values.is_undefined)
define("none", "", function(v) return v == values.none end)
define("string", "", function(v) return type(v) == "string" end)
define("number", "", function(v) return numbers.value(v) ~= nil end)
define("integer", "", function(v) return is_number(v) and not numbers.is_float(v) end)
define("float", "", numbers.is_float)
define("boolean", "", function(v) return type(v) == "boolean" end)
define("true", "", function(v) return v == true end)
define("false", "", function(v) return v == false end)
define("mapping", "", values.is_dict)
define("sequence", "", function(v) return sized[values.kind(v)] == true end)
define("iterable", "", function(v) return sized[values.kind(v)] or iterable[values.kind(v)] or false end)
-- Python's Undefined has __call__.
define("callable", "", function(v) return values.kind(v) == "function" or values.is_undefined(v) end)
local function last_digit(v) return type(v) == "table" and v.digits and tonumber(v.digits:sub(-1)) or number(v) end
define("odd", "", function(v) return last_digit(v) % 2 == 1 end)
define("even", "", function(v) return last_digit(v) % 2 == 0 end)
define("divisibleby", "num /", function(v, n) return values.equal(numbers.arithmetic("%", v, n), 0) end)
define("lower", "", function(v) return q.unicode.is(text.str(v), "lower") end)
define("upper", "", function(v) return q.unicode.is(text.str(v), "upper") end)
define("sameas", "other /", function(v, other) return rawequal(v, other) or v == values.none and other == v end)
define("eq equalto ==", "other /", values.equal)
define("ne !=", "other /", function(v, other) return not values.equal(v, other) end)
define("lt lessthan <", "other /", values.order["<"])
define("gt greaterthan >", "other /", values.order[">"])
define("le <=", "other /", values.order["<="])
define("ge >=", "other /", values.order[">="])
define("in", "seq /", function(v, where) return values.contains(where, v) end)
define("filter", "", function(v) return require("qeng.jinja.filters")[v] ~= nil end)
define("test", "", function(v) return tests[v] ~= nil end)

return tests
