-- help(x) prints the reference of a name ("q.adamw", "Tensor:view"), a function, a class or an object. The reference is
-- bindings/api.lua.
local core = require "qeng.core"
local read_library_file = require "qeng.library_file"

-- entries: name -> {signature=, doc=, parent=, record=}; order: the names in order; sections: {title=, names=}
local entries, order, sections

local function load_reference()
  if entries then return end
  entries, order, sections = {}, {}, {}
  local doc, latest = {}, nil
  local function add(name, signature)
    latest = { signature = signature, doc = doc }
    entries[name] = latest
    order[#order + 1] = name
    if sections[#sections] then table.insert(sections[#sections].names, name) end
    doc = {}
  end
  for line in (read_library_file "bindings/api.lua" .. "\n"):gmatch "(.-)\n" do
    local title = line:match "^%-%- %-%-%-+ (.+)$"
    local name, arguments = line:match "^function ([%w_.:]+)(%b())"
    local class, parent = line:match "^%-%-%-@class ([%w_]+):? ?([%w_]*)"
    local text = line:match "^%-%-%- ?(.*)$"
    local object = line:match "^local ([%w_]+) = {}"
    local field = line:match '^(q%.[%w_.]+) = [^{]'
    if title then
      sections[#sections + 1] = { title = title, names = {} }
    elseif name then
      add(name, name .. arguments)
    elseif class then
      add(class, "class " .. class)
      latest.parent = parent
    elseif field then
      add(field, field)
    elseif object and entries[object] then
      entries[object].record = false
    elseif text and text:find "^@field" and latest then  -- of the class above, a record unless it has methods
      latest.doc[#latest.doc + 1] = text
      latest.record = true
    elseif text then
      doc[#doc + 1] = text
    elseif not line:match "^local" then
      doc = {}
    end
    end
end

-- A function as one line of a list: its signature and the first line about it.
local function in_a_list(name)
  local first = entries[name].doc[1]
  return "  " .. entries[name].signature .. (first and not first:find "^@" and "  -- " .. first or "")
end

-- The comment at the head of a library file. It describes the fields of a long option table.
local function head_of(path)
  local lines = {}
  for line in read_library_file(path):gmatch "([^\n]*)\n" do
    if not line:match "^%-%-" then break end
    lines[#lines + 1] = "  " .. line:gsub("^%-%- ?", "")
  end
  return lines
end

-- A line of documentation as help prints it.
local function readable(text)
  text = text:gsub("^@param ([%w_]+%??) ", "  %1: "):gsub("^@field ([%w_]+%??) ", "  .%1: ")
  text = text:gsub("^@return ", "  returns "):gsub("^@type ", "  type "):gsub("^@operator ", "  operator ")
  return "  " .. text
end

-- Appends the fields of a record (a class without methods), those that it inherits first.
local function add_fields(lines, class)
  local entry = entries[class]
  if not entry or not entry.record then return end
  add_fields(lines, entry.parent)
  for _, text in ipairs(entry.doc) do
    if text:find "^@field" then lines[#lines + 1] = "  " .. readable(text) end
  end
end

local function render(name)
  local entry = entries[name]
  local lines, fields = { entry.signature }, nil
  if entry.record then add_fields(lines, entry.parent) end
  for _, text in ipairs(entry.doc) do
    fields = fields or text:match "fields: (scripts/qeng/[%w_/]+%.lua)"
    lines[#lines + 1] = readable(text)
    add_fields(lines, text:match "^@param [%w_]+%?? ([%w_]+)" or text:match "^@return ([%w_]+)")
  end
  if not name:find "[.:]" then
    for _, other in ipairs(order) do
      if other:sub(1, #name + 1) == name .. ":" then lines[#lines + 1] = in_a_list(other) end
    end
  end
  if fields then
    lines[#lines + 1] = ""
    for _, line in ipairs(head_of(fields)) do lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n")
end

-- The value of the documented name q.a.b.
local function value_of(name)
  local value = package.loaded.qeng or core
  for part in name:gsub("^q%.?", ""):gmatch "[%w_]+" do value = type(value) == "table" and value[part] or nil end
  return value
end

local function metatable_of(class)
  return debug.getregistry()["qeng." .. class] or require("qeng.summaries").classes[class]
end

-- The documented name of a function or of a table of functions: of q, or else of a class.
local function name_of(value)
  local method_name
  for _, name in ipairs(order) do
    local class, method = name:match "^([%w_]+):([%w_]+)$"
    if class then
      local meta = metatable_of(class)
      local index = meta and (meta.__methods or meta.__index)
      if type(index) == "table" and rawequal(index[method], value) then method_name = method_name or name end
    else
      if rawequal(value_of(name), value) then return name end
      local module = name:match "^(q%.[%w_]+)%."
      if module and rawequal(value_of(module), value) then return module end
    end
  end
  return method_name
end

-- The functions of a part of q, "q.fs", as a list; nil if there is no such part.
local function render_module(module)
  local lines = { module }
  for _, name in ipairs(order) do
    if name:sub(1, #module + 1) == module .. "." then
      lines[#lines + 1] = in_a_list(name)
    end
  end
  return #lines > 1 and table.concat(lines, "\n") or nil
end

local kLuaLibraries = { "_G", "string", "table", "math", "io", "os", "coroutine", "debug", "package", "bit", "jit" }

-- Lua's own functions have a manual; the library's own have a place.
local function of_function(value)
  for _, library in ipairs(kLuaLibraries) do
    for name, found in pairs(package.loaded[library] or {}) do
      if found == value then
        return ("%s is Lua's own: www.lua.org/manual/5.1"):format(library == "_G" and name or library .. "." .. name)
      end
    end
  end
  local info = debug.getinfo(value, "S")
  if info.what == "C" then return "no reference for this function; help() lists the names" end
  return ("a function of %s, line %d; help() lists the names with a reference"):format(info.short_src, info.linedefined)
end

local function overview()
  local lines = { 'help "NAME" or help(x) tells about one of these; q = require "qeng"', "" }
  for _, section in ipairs(sections) do
    local names = {}
    for _, name in ipairs(section.names) do
      if not name:find ":" and not entries[name].record then names[#names + 1] = name end
    end
    if #names > 0 then lines[#lines + 1] = section.title .. "\n  " .. table.concat(names, "  ") end
  end
  return table.concat(lines, "\n")
end

local function find(what)
  if what == nil or rawequal(what, value_of "q") then return overview() end
  if type(what) == "string" then
    local short = what:gsub("^q%.", "")
    for _, name in ipairs { what, "q." .. short, (short:gsub("%.", ":")) } do
      if entries[name] then return render(name) end
    end
    local module = render_module("q." .. short)
    if module then return module end
    local near = {}
    for _, candidate in ipairs(order) do
      if candidate:lower() == short:lower() then return render(candidate) end
      local like = candidate:lower():find(short:lower():gsub("[:.]", ""), 1, true) or candidate:match "[%w_]+$" == short
      if like and not entries[candidate].record then
        near[#near + 1] = candidate
      end
    end
    if #near == 1 then return render(near[1]) end
    local hint = #near > 0 and "; see " .. table.concat(near, ", ") or "; help() lists the names"
    return "nothing is called " .. what .. hint
  end
  local name = (type(what) == "function" or type(what) == "table") and name_of(what)
  if name then return entries[name] and render(name) or render_module(name) end
  if type(what) == "function" then return of_function(what) end
  local meta = getmetatable(what)
  local class = type(meta) == "table" and rawget(meta, "__name")
  if class and entries[class] then return render(class) end
  return "no reference for this " .. type(what) .. "; help() lists the names"
end

return function(what)
  load_reference()
  print(find(what))
end
