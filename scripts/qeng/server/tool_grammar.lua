-- Grammars of calls, in the forms of server/tools.lua: a form's own syntax, with arguments that each function's schema
-- binds (engine/grammar). In free text the grammar begins at the tag that opens a call: a text without that tag, then
-- perhaps calls. Tags have their first character only once, which the rule for such a text relies on. Strings between
-- tags are bound by their enum alone, not by lengths or patterns.

local q = require "qeng.core"
local tool_function = require "qeng.server.tool_function"

local tool_grammar = {}

local any_object = '{"type": "object"}'
local no_arguments = '{"type": "object", "additionalProperties": false}'

local function table_of(value) return type(value) == "table" and value or {} end

-- A literal of the grammar.
local function literal(text)
  return '"' .. text:gsub('[\\"]', "\\%0"):gsub("\n", "\\n"):gsub("\r", "\\r"):gsub("\t", "\\t") .. '"'
end

-- The rules `name`, a text without `tag`, and name-part, its beginnings.
local function free_text(rules, name, tag)
  local parts, broken = {}, {}
  local first = tag:sub(1, 1):gsub("[%[%]^\\-]", "\\%0")
  for length = 1, #tag - 1 do
    local begun = literal(tag:sub(1, length))
    parts[length] = begun
    broken[length] = ("%s [^%s%s]"):format(begun, first, (tag:sub(length + 1, length + 1):gsub("[%[%]^\\-]", "\\%0")))
  end
  rules[#rules + 1] = ("%s ::= ([^%s] | %s-part* (%s))* %s-part*"):format(name, first, name,
    table.concat(broken, " | "), name)
  rules[#rules + 1] = ("%s-part ::= %s"):format(name, table.concat(parts, " | "))
end

-- The value of a tagged parameter.
local function value_rule(schemas, rule, parameters, key)
  local schema = parameters.properties[key]
  local is_text, types = tool_function.is_text(parameters, key)
  if is_text or types.string then
    local listed = is_text and type(schema) == "table" and type(schema.enum) == "table" and schema.enum
    if not listed then return "tagged" end
    local all = {}
    for i, one in ipairs(listed) do all[i] = literal(tostring(one)) end
    return "(" .. table.concat(all, " | ") .. ")"
  end
  local whole = {}
  for name, part in pairs(schema) do whole[name] = part end
  whole["$defs"], whole.definitions = parameters["$defs"], parameters.definitions
  schemas[rule] = q.json.encode(whole, { ordered = true })
  return rule
end

-- <function=...> with its parameters in the schema's order.
local function tagged(rules, schemas, rule, fn)
  local parameters, needed, all = table_of(fn.parameters), {}, {}
  local properties = table_of(parameters.properties)
  for _, key in ipairs(table_of(parameters.required)) do needed[key] = true end
  local meta, keys = getmetatable(properties), {}
  for key in pairs(properties) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(meta and meta.__keys or keys) do
    local value = value_rule(schemas, ("%s-%d"):format(rule, i), parameters, key)
    all[i] = ("(%s %s %s)%s"):format(literal("<parameter=" .. key .. ">\n"), value, literal "\n</parameter>\n",
      needed[key] and "" or "?")
  end
  rules[#rules + 1] = ("%s ::= %s %s %s"):format(rule, literal("<function=" .. fn.name .. ">\n"),
    table.concat(all, " "), literal "</function>")
end

-- How a call stands in each form, from the function's name and the rule of its arguments.
local function of_object(key)
  return function(name, arguments)
    return ("%s %s %s"):format(literal(('{"name": "%s", "%s": '):format(name, key)), arguments, literal "}")
  end
end
local writes = { hermes = of_object "arguments", llama = of_object "parameters", mistral = of_object "arguments" }

local function args_form(template)
  local id = template:find("[CALL_ID]", 1, true) and '"[CALL_ID]" [a-zA-Z0-9]{9}' or ""
  return function(name, arguments)
    return ("%s %s %s %s"):format(literal("[TOOL_CALLS]" .. name), id, literal "[ARGS]", arguments)
  end
end

-- What is around a call, and between several.
local around = {
  hermes = { '"<tool_call>\\n" call "\\n</tool_call>"', '"\\n"' },
  llama = { "call", '"; "' },
  mistral = { "call", '", "' },
}
around.xml = around.hermes

-- form, template: as server/tools.lua sees them. functions: those that may be called, each with `bound`: whether its
-- schema counts. several: more than one call may follow. free: text may come before, or alone; nil where the form does
-- not let that be told.
function tool_grammar.new(form, template, functions, several, free)
  if free and form == "llama" then return nil end  -- an answer in JSON may be an answer
  local rules, schemas, calls = {}, {}, {}
  local newer = form == "mistral" and template:find("[ARGS]", 1, true) ~= nil
  local write = newer and args_form(template) or writes[form]
  for i, fn in ipairs(functions) do
    local rule = "arguments-" .. i
    if form == "xml" then
      tagged(rules, schemas, rule, fn)
      calls[i] = rule
    else
      local given = next(table_of(fn.parameters)) ~= nil
      schemas[rule] = not given and no_arguments or fn.bound and q.json.encode(fn.parameters, { ordered = true })
        or any_object
      calls[i] = write(fn.name, rule)
    end
  end
  rules[#rules + 1] = "call ::= " .. table.concat(calls, " | ")
  local one, between = unpack(around[form])
  if newer then between = "" end
  local all = one .. (several and (" (%s %s)*"):format(between, one) or "")
  if form == "mistral" and not newer then all = ('"[TOOL_CALLS]" " "? "[" %s "]"'):format(all) end
  if free then
    free_text(rules, "text", form == "mistral" and "[TOOL_CALLS]" or "<tool_call>")
    all = ("text (%s)?"):format(all)
  end
  rules[#rules + 1] = "root ::= " .. all
  if form == "xml" then free_text(rules, "tagged", "</parameter>") end
  return q.grammar(table.concat(rules, "\n"), { schemas = schemas })
end

return tool_grammar
