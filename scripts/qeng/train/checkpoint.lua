-- Checkpoints of a run: out/checkpoints/step-000100/ with the trained parameters, the optimizer and state.json. A
-- folder is written under another name, synced and renamed: one under its own name is whole. It may still belong to
-- another run, or be damaged, so everything that is read is checked.

local q = require "qeng.core"
local resume = require "qeng.train.resume"

local checkpoint = {}

local function folder(out) return out .. "/checkpoints" end

-- Deletes what a killed run left unfinished. One run at a time writes to a folder.
function checkpoint.clean(out)
  if q.fs.kind(folder(out)) ~= "dir" then return end
  q.fs.sweep(folder(out))
  for _, name in ipairs(q.fs.list(folder(out))) do
    if name:match("^step%-%d+%.tmp$") then q.fs.remove(folder(out) .. "/" .. name) end
  end
end

local function step_of(name) return tonumber(name:match "^step%-(%d+)$") end

-- Names of whole checkpoints, oldest first.
function checkpoint.list(out)
  local names = {}
  if q.fs.kind(folder(out)) ~= "dir" then return names end
  for _, name in ipairs(q.fs.list(folder(out))) do
    if step_of(name) and q.fs.kind(folder(out) .. "/" .. name .. "/state.json") == "file" then
      names[#names + 1] = name
    end
  end
  table.sort(names, function(a, b) return step_of(a) < step_of(b) end)
  return names
end

-- The state of a checkpoint as it was saved. Refuses what is no such state.
local function read_state(dir)
  local path = dir .. "/state.json"
  local fine, state = pcall(q.json.decode, q.fs.read(path))
  local function expect(what, good)
    if not good then
      q.error("format", ("%s: %s: the file is damaged or not of this program; delete %s to go on from an earlier one")
        :format(path, what, dir))
    end
  end
  expect(tostring(state), fine)
  expect("no JSON object", type(state) == "table")
  expect("step is not the folder's", state.step == step_of(dir:match "[^/]+$"))
  for _, name in ipairs { "optimizer_parts", "parameter_parts" } do
    local parts = state[name]
    expect(name .. " is no number of files", parts == nil or type(parts) == "number" and parts >= 1 and parts <= 65536)
  end
  expect("no optimizer_steps", type(state.optimizer_steps) == "number" or type(state.optimizer_steps) == "table")
  return state
end

-- Refuses a folder whose newest checkpoint belongs to a run that did not end.
function checkpoint.refuse_unfinished(out)
  local names = checkpoint.list(out)
  local dir = ("%s/%s"):format(folder(out), names[#names])
  if #names > 0 and not read_state(dir).finished then
    q.error("value",
        ("%s is a run that stood at step %d: go on with --resume; or delete %s, or give another --out, to start " ..
          "anew"):format(
      out, step_of(names[#names]), folder(out)))
  end
end

-- Refuses a checkpoint of a run with other settings. found, mine: flat tables; `found` comes from a file and may hold
-- anything.
function checkpoint.compare(dir, found, mine)
  if type(found) ~= "table" then q.error("format", ("%s: was not saved by such a run"):format(dir)) end
  local names = resume.differences(found, mine)
  if #names == 0 then return end
  local first = { mode = 1, dtype = 1, rule = 1, levels = 2, rank = 2 }  -- which decide what the others are
  table.sort(names, function(a, b)
    local i, j = first[a] or 3, first[b] or 3
    if i ~= j then return i < j end
    return a < b
  end)
  local name = names[1]
  local function shown(value) return value == nil and "none" or tostring(value) end
  q.error("value", ("resume: the run in %s has %s %s, this one %s; give the same"):format(dir, name, shown(found[name]),
    shown(mine[name])))
end

checkpoint.fill = require "qeng.optim.fill"

-- The names of the parameters that an optimizer trains, in its order, as its states are called; others are kept beside
-- them.
function checkpoint.trained(parameters, optimizer)
  local names = {}
  local function add(tensor)
    for _, parameter in ipairs(parameters) do
      if not tensor or parameter.tensor == tensor then names[#names + 1] = parameter.name end
    end
  end
  if not optimizer.tensors then add() end  -- one that does not say what it trains: all
  for _, tensor in ipairs(optimizer.tensors or {}) do add(tensor) end
  return names
end

local function part_name(what, rank) return ("%s-%d.safetensors"):format(what, rank) end

-- parameters: {name, tensor} of what `adamw` trains, in its order, and of what else is kept. state: a JSON-able table
-- of what resuming needs; step is the number of finished steps, and finished says whether that was the last. bits:
-- q.inertia or q.phases of one-bit weights that learn, or nil. parts: {team =, own = function(i), weights =} of ranks
-- that have parts of the optimizer's state, and with `weights` of the parameters, and write them side by side.
function checkpoint.save(out, parameters, adamw, state, keep, bits, parts)
  local team = parts and parts.team
  local dir = ("%s/step-%06d"):format(folder(out), state.step)
  local tmp = dir .. ".tmp"
  if not team or team.first then
    q.fs.mkdir(folder(out))
    q.fs.remove(tmp)
    q.fs.mkdir(tmp)
  end
  local optimizer, steps = adamw:state(checkpoint.trained(parameters, adamw))
  local tensors = {}
  for i, parameter in ipairs(parameters) do
    if not parts or not parts.weights or parts.own(i) then
      tensors[#tensors + 1] = { parameter.name, parameter.tensor }
    end
  end
  if team then
    team:meet()
    q.safetensors.save(tmp .. "/" .. part_name("optimizer", team.rank), optimizer)
    if parts.weights then q.safetensors.save(tmp .. "/" .. part_name("parameters", team.rank), tensors) end
    team:meet()
    if not team.first then return end
  else
    q.safetensors.save(tmp .. "/optimizer.safetensors", optimizer)
  end
  state.optimizer_parts = team and team.size
  state.parameter_parts = team and parts.weights and team.size or nil
  if not state.parameter_parts then q.safetensors.save(tmp .. "/parameters.safetensors", tensors) end
  state.optimizer_steps = steps
  if bits then
    q.safetensors.save(tmp .. "/bits.safetensors", bits:tensors())
    state.bits = bits:state()
    state.bits.settings = bits:settings()
  end
  q.fs.write(tmp .. "/state.json", q.json.encode(state, { pretty = true }) .. "\n")
  q.fs.replace_dir(tmp, dir)
  local names = checkpoint.list(out)
  for i = 1, #names - (keep or 2) do
    local old = folder(out) .. "/" .. names[i]
    local moved, why = os.rename(old, old .. ".tmp")  -- so that a kill leaves no half of it under its name
    if not moved then q.error("io", why) end
    q.fs.remove(old .. ".tmp")
  end
end

-- Rewrites state.json of the checkpoint of state.step. Its tensors stay as they were saved.
function checkpoint.note(out, state)
  q.fs.write(("%s/step-%06d/state.json"):format(folder(out), state.step),
    q.json.encode(state, { pretty = true }) .. "\n")
end

-- Opens a file of a checkpoint.
local function open_part(dir, name)
  local file, err = q.try(q.safetensors.open, dir .. "/" .. name)
  if not file then q.error(err.code, ("%s; delete %s to go on from an earlier one"):format(err.message, dir)) end
  return file
end

-- The optimizer's state or the parameters (`what`) of a checkpoint, as of one file: of `parts` ranks' files, or of the
-- only one (nil).
local function open_parts(dir, what, parts)
  if not parts then return open_part(dir, what .. ".safetensors") end
  local files, file_of = {}, {}
  for rank = 0, parts - 1 do
    local file = open_part(dir, part_name(what, rank))
    files[#files + 1] = file
    for _, name in ipairs(file:names()) do file_of[name] = file end
  end
  return {
    info = function(_, name) return (file_of[name] or files[1]):info(name) end,
    tensor = function(_, name, ...) return (file_of[name] or files[1]):tensor(name, ...) end,
    close = function() for _, file in ipairs(files) do file:close() end end,
  }
end

-- Restores the newest checkpoint into parameters, optimizer and bits. Returns its state, or nil where there is none.
-- Before anything changes, its settings are compared and check(state) may refuse it. own(i): whether parameter i is to
-- be restored (nil: all are).
function checkpoint.load(out, parameters, adamw, bits, check, own)
  local names = checkpoint.list(out)
  local name = names[#names]
  if not name then return nil end
  local dir = folder(out) .. "/" .. name
  local state = read_state(dir)
  if bits then checkpoint.compare(dir, type(state.bits) == "table" and state.bits.settings, bits:settings()) end
  if check then check(state) end
  if bits then
    local stored = open_part(dir, "bits.safetensors")
    local fine, err = pcall(bits.restore, bits, state.bits, stored)
    stored:close()
    if not fine then
      if type(err) ~= "table" or err.code ~= "format" then error(err, 0) end
      q.error(err.code, ("%s: %s; delete it to go on from an earlier one"):format(dir, err.message))
    end
  end
  local file = open_parts(dir, "parameters", state.parameter_parts)
  for i, parameter in ipairs(parameters) do
    if not own or own(i) then checkpoint.fill(parameter.tensor, file, parameter.name) end
  end
  file:close()
  local optimizer = open_parts(dir, "optimizer", state.optimizer_parts)
  adamw:restore(optimizer, checkpoint.trained(parameters, adamw), state.optimizer_steps)
  optimizer:close()
  return state
end

return checkpoint
