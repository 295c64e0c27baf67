-- What a folder has beside the model that is run: the images' part of a model of text and images, heads that draft
-- tokens (mtp). It is saved as it is, under its own names. So is the config.json of what wraps a text model, with what
-- the text model's has changed since. model.kept: {file = the open folder, names = of those tensors, copied and
-- decoded = of which each way, wrapped = of what wraps the model (model/wrapper.lua), or nil}.

local q = require "qeng.core"
local wrapper = require "qeng.model.wrapper"

local kept = {}

-- "model.visual, mtp" of a list of names.
function kept.parts(names)
  local list, seen = {}, {}
  for _, name in ipairs(names) do
    local part = name:match "^model%.[^.]+" or name:match "^[^.]+"
    if not seen[part] then list[#list + 1], seen[part] = part, true end
  end
  table.sort(list)
  return table.concat(list, ", ")
end

-- Says what is not run. wrapped: of a Config (model/config.lua), or nil. then_: what becomes of it.
function kept.tell(dir, names, wrapped, then_)
  local text = wrapped and ("the text part of a %s, which sees no images"):format(wrapped.architecture)
  local left = #names > 0 and ("%d tensors are not run (%s)%s"):format(#names, kept.parts(names), then_)
  if text or left then
    io.stderr:write(("%s: %s%s%s\n"):format(dir, text or "", text and left and "; " or "", left or ""))
  end
end

local plain = { f32 = true, bf16 = true, f16 = true, i32 = true, i64 = true, u8 = true }

-- Keeps them for model:save. Those that are packed, as the folder's layers are, are saved as the values that they stand
-- for: what is saved has no other packed layers.
function kept.keep(model, dir, names, wrapped)
  if #names == 0 and not wrapped then return end
  local file = q.weights.open(dir)  -- a mapping of its own: what the model reads may lie in memory, or be let go
  local copied, decoded = {}, {}
  for _, name in ipairs(names) do
    local info = file:info(name)
    local list = (plain[info.dtype] or not info.readable) and copied or decoded
    list[#list + 1] = name
  end
  model.kept = { file = file, names = names, copied = copied, decoded = decoded, wrapped = wrapped }
end

-- Those that are saved as values, in the form of q.safetensors.save.
function kept.tensors(model, dtype)
  local list = {}
  for i, name in ipairs(model.kept and model.kept.decoded or {}) do
    list[i] = { name, model.kept.file:tensor(name), dtype }
  end
  return list
end

-- And those that are copied: options of q.safetensors.save.
function kept.copied(model, opt)
  if model.kept then opt.from, opt.copied = model.kept.file, model.kept.copied end
  return opt
end

-- Forgets those whose names match a pattern: they are parameters now, or are not wanted.
function kept.leave(model, pattern)
  if not model.kept then return end
  for _, list in ipairs { model.kept.names, model.kept.copied, model.kept.decoded } do
    for i = #list, 1, -1 do
      if list[i]:find(pattern) then table.remove(list, i) end
    end
  end
end

-- The name under which a parameter is saved.
function kept.name(model, name)
  local wrapped = model.kept and model.kept.wrapped
  return wrapped and wrapped.name(name) or name
end

-- The values of the config.json that is saved. values: of the text model, as it is now.
function kept.values(model, values)
  local drafts = values.mtp_num_hidden_layers
  local there = model.mtp or kept.parts(model.kept and model.kept.names or {}):find "mtp"
  if type(drafts) == "number" and drafts > 0 and not there then
    values.mtp_num_hidden_layers = 0
    io.stderr:write("save: config.json said mtp_num_hidden_layers, and there are no such tensors: it says 0 now\n")
  end
  local wrapped = model.kept and model.kept.wrapped
  return wrapped and wrapper.saved(wrapped, values) or values
end

return kept
