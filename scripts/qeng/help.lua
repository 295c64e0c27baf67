-- help(x): the reference of a name ("q.adamw", "Tensor:view"), a function, a class or an object, from bindings/api.lua.
local core = require "qeng.core"
local read_library_file = require "qeng.library_file"

local entries, order, sections -- name -> {signature=, doc=, class=}; names in order; {title, names}

local function load_reference()
  if entries then return end
  entries, order, sections = {}, {}, {}
  local doc = {}
  local function add(name, signature)
    entries[name] = { signature = signature, doc = doc }
    order[#order + 1] = name
    if sections[#sections] then table.insert(sections[#sections].names, name) end
    doc = {}
  end
  for line in (read_library_file "bindings/api.lua" .. "\n"):gmatch "(.-)\n" do
    local title = line:match "^%-%- %-%-%-+ (.+)$"
    local name, arguments = line:match "^function ([%w_.:]+)(%b())"
    local class = line:match "^%-%-%-@class ([%w_]+)"
    local text = line:match "^%-%-%- ?(.*)$"
    local field = line:match '^(q%.[%w_.]+) = [^{]'
    if title then
      sections[#sections + 1] = { title = title, names = {} }
    elseif name then
      add(name, name .. arguments)
    elseif class then
      add(class, "class " .. class)
    elseif field then
      add(field, field)
    elseif text then
      doc[#doc + 1] = text
    elseif not line:match "^local" then
      doc = {}
    end
  end
end

local function render(name)
  local entry = entries[name]
  local lines = { entry.signature }
  for _, text in ipairs(entry.doc) do
    text = text:gsub("^@param ([%w_]+%??) ", "  %1: "):gsub("^@return ", "  returns "):gsub("^@type ", "  type "):gsub("^@operator ", "  operator ")
    lines[#lines + 1] = "  " .. text
  end
  if not name:find "[.:]" then
    for _, other in ipairs(order) do
      if other:sub(1, #name + 1) == name .. ":" then lines[#lines + 1] = "  " .. entries[other].signature end
    end
  end
  return table.concat(lines, "\n")
end

-- The documented name of a function, looked for in q and in the classes.
local function name_of(value)
  local registry = debug.getregistry()
  for _, name in ipairs(order) do
    local class, method = name:match "^([%w_]+):([%w_]+)$"
    local found
    if class then
      local meta = registry["qeng." .. class]
      found = meta and type(meta.__index) == "table" and meta.__index[method]
    else
      found = package.loaded.qeng or core
      for part in name:gsub("^q%.", ""):gmatch "[%w_]+" do found = type(found) == "table" and found[part] or nil end
    end
    if found ~= nil and found == value then return name end
  end
end

local function overview()
  local lines = { 'help "NAME" or help(x) tells about one of these; q = require "qeng"', "" }
  for _, section in ipairs(sections) do
    local names = {}
    for _, name in ipairs(section.names) do
      if not name:find ":" then names[#names + 1] = name end
    end
    if #names > 0 then lines[#lines + 1] = section.title .. "\n  " .. table.concat(names, "  ") end
  end
  return table.concat(lines, "\n")
end

local function find(what)
  if what == nil then return overview() end
  if type(what) == "string" then
    local short = what:gsub("^q%.", "")
    local name = entries[what] and what or entries["q." .. short] and "q." .. short
    if name then return render(name) end
    local near = {}
    for _, candidate in ipairs(order) do
      if candidate:lower():find(short:lower():gsub("[:.]", ""), 1, true) or candidate:match "[%w_]+$" == short then
        near[#near + 1] = candidate
      end
    end
    if #near == 1 then return render(near[1]) end
    return "nothing is called " .. what .. (#near > 0 and "; see " .. table.concat(near, ", ") or "; help() lists the names")
  end
  local name = type(what) == "function" and name_of(what)
  if name then return render(name) end
  local meta = getmetatable(what)
  local class = type(meta) == "table" and rawget(meta, "__name")
  if class and entries[class] then return render(class) end
  return "no reference for this " .. type(what) .. "; help() lists the names"
end

return function(what)
  load_reference()
  print(find(what))
end
