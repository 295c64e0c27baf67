-- Checkpoints of a run: out/checkpoints/step-000100/ with the trained parameters, the optimizer and state.json. A folder is
-- written under another name, synced and renamed, so whatever is there under its own name is whole.

local q = require "qeng.core"

local checkpoint = {}

local function folder(out) return out .. "/checkpoints" end

-- Deletes what a killed run left half written. One run at a time writes to a folder.
function checkpoint.clean(out)
  if q.fs.kind(folder(out)) ~= "dir" then return end
  q.fs.sweep(folder(out))
  for _, name in ipairs(q.fs.list(folder(out))) do
    if name:match("^step%-%d+%.tmp$") then q.fs.remove(folder(out) .. "/" .. name) end
  end
end

-- Names of whole checkpoints, oldest first.
function checkpoint.list(out)
  local names = {}
  if q.fs.kind(folder(out)) ~= "dir" then return names end
  for _, name in ipairs(q.fs.list(folder(out))) do
    if name:match("^step%-%d+$") and q.fs.kind(folder(out) .. "/" .. name .. "/state.json") == "file" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function names_of(parameters)
  local names = {}
  for i, parameter in ipairs(parameters) do names[i] = parameter.name end
  return names
end

-- parameters: {name, tensor} of what `adamw` trains, in its order. state: what has to be the same after resuming, as a JSON-able table;
-- step is its number of finished steps. bits: of one-bit weights that learn, q.inertia or q.phases, or nil.
function checkpoint.save(out, parameters, adamw, state, keep, bits)
  q.fs.mkdir(folder(out))
  local dir = ("%s/step-%06d"):format(folder(out), state.step)
  local tmp = dir .. ".tmp"
  q.fs.remove(tmp)
  q.fs.mkdir(tmp)
  local tensors = {}
  for i, parameter in ipairs(parameters) do tensors[i] = { parameter.name, parameter.tensor } end
  q.safetensors.save(tmp .. "/parameters.safetensors", tensors)
  local optimizer, steps = adamw:state(names_of(parameters))
  q.safetensors.save(tmp .. "/optimizer.safetensors", optimizer)
  state.optimizer_steps = steps
  if bits then
    q.safetensors.save(tmp .. "/bits.safetensors", bits:tensors())
    state.bits = bits:state()
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

-- Restores the newest checkpoint into parameters, optimizer and bits; its state, or nil where there is none.
function checkpoint.load(out, parameters, adamw, bits)
  local names = checkpoint.list(out)
  local name = names[#names]
  if not name then return nil end
  local dir = folder(out) .. "/" .. name
  local state = q.json.decode(q.fs.read(dir .. "/state.json"))
  if bits then
    if not state.bits then q.error("format", dir .. ": holds no counters of one-bit weights: the run was started with other options") end
    local stored = q.safetensors.open(dir .. "/bits.safetensors")
    bits:restore(state.bits, stored)
    stored:close()
  end
  local file = q.safetensors.open(dir .. "/parameters.safetensors")
  for _, parameter in ipairs(parameters) do
    if not file:info(parameter.name) then
      q.error("format", ("%s: parameter %s is missing: the run was started with other options"):format(dir, parameter.name))
    end
    parameter.tensor:copy(file:tensor(parameter.name, { shape = parameter.tensor:shape() }))
  end
  file:close()
  local optimizer = q.safetensors.open(dir .. "/optimizer.safetensors")
  adamw:restore(optimizer, names_of(parameters), state.optimizer_steps)
  optimizer:close()
  return state
end

return checkpoint
