-- What has to be the same in a resumed run: everything that the run was given and that its model is, except what is
-- listed here. A new option has to be the same until it is put on the list. A checkpoint keeps both parts. And what has
-- to be the same on all ranks of a job.

local digest = require "qeng.model.digest"
local q = require "qeng.core"

local resume = {}

local function set(text)
  local names = {}
  for name in text:gmatch "%S+" do names[name] = true end
  return names
end

-- These may change, and the run says so: the course of the learning rate, when to evaluate and save, where and how
-- files and weights are held. The content of the files is compared.
local may_change = set [[
  steps epochs lr lr_floor schedule warmup decay clip scale_rate nan_limit eval_every save_every keep patience
  best samples sample_tokens tensorboard
  model data tokenizer device threads device_budget weights host_budget stream_keep recompute eager profile timeline
  merge gguf zero
]]
-- Fields of q.train that are no settings. Below: options that may differ each time.
local no_setting = set [[
  model data out bits optimizer settings title curves weights on_step on_batch on_begin on_eval eval_data save_best
  resume overwrite checkpoints ranks leaves
]]
local of_each_time = set "out resume overwrite"
-- These may differ between the ranks of a job: where each finds files and computes, and what rank 0 alone writes.
local of_each_rank = set [[
  out overwrite model data tokenizer device threads device_budget weights host_budget stream_keep
  profile timeline tensorboard merge gguf
]]

-- Puts the numbers, strings and booleans of `value` into a flat table. A list becomes text; other tables become names
-- with dots.
local function flatten(into, name, value)
  local count = 0
  for _ in pairs(type(value) == "table" and value or {}) do count = count + 1 end
  if count > 0 and count == #value and type(value[1]) ~= "table" then
    local words = {}
    for i, each in ipairs(value) do words[i] = type(each) == "number" and ("%.17g"):format(each) or tostring(each) end
    into[name] = table.concat(words, ",")
  elseif type(value) == "table" then
    for key, inner in pairs(value) do flatten(into, ("%s.%s"):format(name, tostring(key)), inner) end
  elseif type(value) == "number" or type(value) == "string" or type(value) == "boolean" then
    into[name] = value
  end
end

-- `values` as a flat table.
function resume.flat(values)
  local into = {}
  for name, value in pairs(values) do flatten(into, name, value) end
  return into
end

-- ---------------------------------------------------------------- what data and weights are

-- What tells datasets apart: the number of records, and a digest of the lengths of some and of the tokens of a few.
local function dataset(file)
  local records, sum = file:records(), 0
  local function add(number) sum = (sum * 31 + number) % 2 ^ 32 end
  local function visit(most, look)
    local count = math.min(most, records)
    for i = 0, count - 1 do look(math.floor(i * records / count)) end
  end
  visit(4096, function(record)
    local info = file:info(record)
    add(info.tokens)
    add(info.loss_tokens)
  end)
  visit(64, function(record) file:expect(record) end)
  visit(64, function(record)
    local info = file:info(record)
    -- longer ones would take seconds
    local tokens = info.type == "token_ids" and info.tokens <= 65536 and file:read(record)
    for _, token in ipairs(tokens or {}) do add(token) end
  end)
  return ("%d records, digest %08x"):format(records, sum)
end

-- ---------------------------------------------------------------- a run's settings

-- `all`, flat, as what has to stay and what may change. own: what stays besides, of which no setting has the name.
local function split(all, own)
  if all.device == "auto" then all.device = q.devices()[1].name end
  local fixed, course = own, {}
  for name, value in pairs(all) do
    if may_change[name] then course[name] = value
    elseif not of_each_time[name] and own[name] == nil then fixed[name] = value end
  end
  return fixed, course
end

-- What stays and what may change of a recipe's settings, of the weights that its model (or nil) does not train, and of
-- what the file of data holds.
function resume.of_recipe(settings, model)
  local data = settings.data
  return split(resume.flat(settings), {
    ["base weights"] = model and digest.of_weights(model) or nil,
    ["content of data"] = type(data) == "string" and q.fs.kind(data) == "file" and q.host.hash(q.fs.read(data)) or nil,
  })
end

-- given: of q.train, with its defaults. steps: as resolved. Returns what has to stay and what may change, as flat
-- tables. Functions (a curriculum, hooks) cannot be compared.
function resume.settings(given, defaults, steps)
  local all, model, own = {}, given.model, {}
  for _, values in ipairs { defaults, given.settings or {} } do
    for name, value in pairs(values) do flatten(all, name, value) end
  end
  for name, value in pairs(given) do
    if not no_setting[name] then flatten(all, name, value) end
  end
  flatten(all, "weights of sources", given.weights)
  for name, value in pairs(model.adapter or {}) do
    if name ~= "parameters" then flatten(own, name, value) end
  end
  flatten(own, "config", model.config or {})
  own.mode, own.dtype, own.rule, own.neftune, own.architecture = model.mode, model.fp8 and "fp8" or model.dtype,
    model.rule, model.neftune, model.arch and model.arch.hf
  own.router_aux_loss = model.router_aux_loss
  if model.mtp then own.mtp, own.mtp_depth = model.mtp.weight, model.mtp.depth end
  own["base weights"], own.data = digest.of_weights(model, given.bits), dataset(given.data)
  own["held-out data"] = given.eval_data and dataset(given.eval_data)
  all.steps = steps
  return split(all, own)
end

-- What earlier versions did, which had no such setting. A setting that is off need not stand here.
local formerly = { optim = "adamw", moment_bits = 32, gradients = "f32" }
local function is_off(value) return value == nil or value == false or value == 0 or value == "" end
local function same(name, a, b)
  if name == "content of data" and a == nil then return true end  -- of a q.loop of earlier versions
  if name == "held-out data" and (a == nil or b == nil) then return true end  -- the option eval_data says whether any
  if a == nil then a = formerly[name] end
  if b == nil then b = formerly[name] end
  return a == b or (a == nil or b == nil) and is_off(a) and is_off(b)
end

-- The names whose values differ between two flat tables, in order.
function resume.differences(before, now)
  local names = {}
  for name, value in pairs(now) do
    if not same(name, before[name], value) then names[#names + 1] = name end
  end
  for name, value in pairs(before) do
    if now[name] == nil and not same(name, value, nil) then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function shown(value) return (value == nil or value == "") and "not given" or tostring(value) end

-- Refuses ranks of a job that were not started alike. options, and what else has to be the same: flat tables.
function resume.agree(team, options, others)
  if team.size == 1 then return end
  local own = { ["version of qeng"] = q.version }
  for name, value in pairs(options) do
    if not of_each_rank[name] then own[name] = value end
  end
  for name, value in pairs(others or {}) do own[name] = value end
  local all = team:texts(q.json.encode(own))
  local first = q.json.decode(all[1])
  for i, text in ipairs(all) do
    local other, parts = q.json.decode(text), {}
    for _, name in ipairs(resume.differences(first, other)) do
      parts[#parts + 1] = ("%s %s (rank 0: %s)"):format(name, shown(other[name]), shown(first[name]))
    end
    if #parts > 0 then
      q.error("value", ("start all ranks with the same: rank %d has %s"):format(i - 1, table.concat(parts, ", ")))
    end
  end
end

-- Says in a line which settings the resumed run changes.
function resume.tell_changes(speak, before, now)
  local changes = {}
  for i, name in ipairs(resume.differences(before, now)) do
    changes[i] = ("%s was %s and is %s now"):format(name, shown(before[name]), shown(now[name]))
  end
  if #changes > 0 then speak:say("resume: " .. table.concat(changes, ", ")) end
end

return resume
