-- What has to be the same in a resumed run: everything that the run was given and that its model is, except what is
-- listed here. A new option has to be the same until it is put on the list. A checkpoint keeps both parts.

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
  model data tokenizer device threads device_budget weights host_budget stream_keep recompute eager profile merge gguf
]]
-- Fields of q.train that are no settings. Below: options that may differ each time.
local no_setting = set [[
  model data out bits optimizer settings title curves weights on_step on_batch on_begin on_eval eval_data save_best
  resume overwrite checkpoints
]]
local of_each_time = set "out resume overwrite"

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
  local records, digest = file:records(), 0
  local function add(number) digest = (digest * 31 + number) % 2 ^ 32 end
  local function visit(most, look)
    local count = math.min(most, records)
    for i = 0, count - 1 do look(math.floor(i * records / count)) end
  end
  visit(4096, function(record)
    local info = file:info(record)
    add(info.tokens)
    add(info.loss_tokens)
  end)
  visit(64, function(record)
    local info = file:info(record)
    -- longer ones would take seconds
    local tokens = info.type == "token_ids" and info.tokens <= 65536 and file:read(record)
    for _, token in ipairs(tokens or {}) do add(token) end
  end)
  return ("%d records, digest %08x"):format(records, digest)
end

local whole_bytes, some_rows = 2 ^ 20, 16  -- larger tensors are told by that many rows: some 40 MB of 7 billion weights

-- A digest of the weights that are not trained: name, dtype, shape and values of each. Of large ones it takes some
-- rows, however they are held in memory. Trained weights and learning bits are in the checkpoint itself. A base model
-- that was trained further differs in nearly every row; a change of a few rows of a large tensor may go unseen.
local function base_weights(model, bits)
  local learned, count, digest = {}, 0, 0
  for _, layer in ipairs(bits and model.linears or {}) do learned[layer.weight] = true end
  local function add(text)
    for i = 1, #text do digest = (digest * 31 + text:byte(i)) % 2 ^ 48 end
  end
  local function add_tensor(name, tensor)
    if tensor:requires_grad() or learned[tensor] then return end
    count = count + 1
    local shape = tensor:shape()
    add(("%s %s %s "):format(name, tensor:dtype(), table.concat(shape, "x")))
    if #shape == 3 then tensor = tensor:reshape { shape[1] * shape[2], shape[3] } end  -- of experts
    local rows = tensor:bytes() <= whole_bytes and tensor:shape()[1] or some_rows
    add(tensor:hash(rows))
  end
  for _, parameter in ipairs(model.parameters or {}) do
    add_tensor(parameter.name, parameter.tensor)
    local shape = parameter.tensor:shape()
    for _, rotation in pairs { model.rotations and #shape == 2 and model.rotations(parameter.name, shape[2]) or nil } do
      add(("rotated %d %s"):format(rotation.block, rotation.signs and rotation.signs:hash() or ""))
    end
  end
  for _, layer in ipairs(model.linears or {}) do
    if layer.row_scale then add_tensor(layer.name .. ".weight_scale", layer.row_scale) end
  end
  return ("%d tensors, digest %012x"):format(count, digest)
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

-- What stays and what may change of a recipe's settings, and of the weights that its model (or nil) does not train.
function resume.of_recipe(settings, model)
  return split(resume.flat(settings), { ["base weights"] = model and base_weights(model) or nil })
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
  own.mode, own.dtype, own.rule, own.neftune, own.architecture = model.mode, model.dtype, model.rule, model.neftune,
    model.arch and model.arch.hf
  own.router_aux_loss = model.router_aux_loss
  own["base weights"], own.data = base_weights(model, given.bits), dataset(given.data)
  all.steps = steps
  return split(all, own)
end

-- What earlier versions did, which had no such setting. A setting that is off need not stand here.
local formerly = { optim = "adamw" }
local function is_off(value) return value == nil or value == false or value == 0 or value == "" end
local function same(name, a, b)
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

-- Says in a line which settings the resumed run changes.
function resume.tell_changes(speak, before, now)
  local changes = {}
  for i, name in ipairs(resume.differences(before, now)) do
    local function shown(value) return value == nil and "not given" or tostring(value) end
    changes[i] = ("%s was %s and is %s now"):format(name, shown(before[name]), shown(now[name]))
  end
  if #changes > 0 then speak:say("resume: " .. table.concat(changes, ", ")) end
end

return resume
