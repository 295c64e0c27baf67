-- The names documented in bindings/api.lua are exactly the ones that exist: functions of q and its modules, methods of
-- classes. A class bound in C++ is a metatable "qeng.NAME" of the registry; the classes of the Lua library are listed.
local q = require "qeng"

local documented = {}
for line in (require "qeng.library_file"("bindings/api.lua") .. "\n"):gmatch "(.-)\n" do
  local name = line:match "^function ([%w_.:]+)%("
  if name then
    assert(not documented[name], "api.lua documents " .. name .. " twice")
    documented[name] = true
  end
  local field = line:match "^(q%.[%w_.]+) = [^{]"
  if field and field ~= "q.Tensor" then documented[field] = true end  -- the methods are listed one by one
end

local existing = {}
local function walk(table_, prefix, seen)
  if seen[table_] then return end
  seen[table_] = true
  for name, value in pairs(table_) do
    if type(name) == "string" and not name:match "^_" and value ~= q.Tensor then
      if type(value) == "table" and prefix == "q." then
        walk(value, prefix .. name .. ".", seen)
      elseif type(value) == "function" or type(value) == "string" then
        existing[prefix .. name] = true
      end
    end
  end
end
walk(q, "q.", {})

local function methods(class, table_)
  for name, value in pairs(table_) do
    if type(value) == "function" and not name:match "^_" then existing[class .. ":" .. name] = true end
  end
end
for key, meta in pairs(debug.getregistry()) do
  local class = type(key) == "string" and type(meta) == "table" and key:match "^qeng%.(%u%w*)$"
  if class and type(meta.__methods) == "table" then
    methods(class, meta.__methods)
  end
end
local template = q.chat_template({ info = function() return {} end, id = function() end }, "none")
local classes = {
  Model = require("qeng.model").Model, Template = getmetatable(template), Engine = require("qeng.infer.engine").Engine,
  Run = require("qeng.train.run").Run, Loop = require("qeng.train.loop").Loop,
  Optimizer = require("qeng.train.adamw").Optimizer,
  Inertia = require("qeng.onebit.inertia").Inertia, Phases = require("qeng.onebit.phases").Phases,
  Conversation = require("qeng.infer.conversation").Conversation,
  Hopfield = require("qeng.infer.hopfield").Hopfield,
  Edit = require("qeng.edit").Edit, EditScores = require("qeng.edit.scores").Scores,
  EditStatistics = require("qeng.edit.statistics").Statistics,
  Packed = require("qeng.model.documents").Packed, Preferences = require("qeng.train.preferences").Pairs,
  Server = require("qeng.server").Server, Call = require "qeng.server.call",
  Request = { take = require("qeng.infer.request").take, speed = require("qeng.infer.request").speed },
}
for class, table_ in pairs(classes) do methods(class, table_) end

local problems = {}
for name in pairs(documented) do
  if not existing[name] then problems[#problems + 1] = "documented but missing: " .. name end
end
for name in pairs(existing) do
  if not documented[name] then problems[#problems + 1] = "not documented: " .. name end
end
table.sort(problems)
assert(#problems == 0, "\n" .. table.concat(problems, "\n"))
print "api: documented and existing names agree"
