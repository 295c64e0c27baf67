-- Finds the model file that a config.json or a GGUF file asks for, among those of scripts/qeng/models and the user's
-- own. A model file returns a table that says everything of one architecture; recipes/README.md has an example:
--   hf, model_type     its names in config.json
--   config(file)       reads its settings from a Config (model/config.lua); a key that it does not read is refused
--   build(model, source, c)   makes its forward function of the parts in model/nn.lua
--   initial(name, shape)   a list of the values that a parameter begins with in a new model, nil for the usual
--   gguf               its words in GGUF (gguf/names.lua, gguf/config.lua); nil if it has none
--   lora               the roles of layers that get adapters by default; nil for all linear layers
--   peft_leaves        patterns of layers whose adapters PEFT leaves out when it reads them
--   texts              what transformers assumes where the text part of a model of images leaves keys out:
--                      {[model_type] = {vocab, hidden, ffn, layers, heads, kv_heads, eps =, theta =}}
--   names              where its checkpoint calls parts otherwise than most, as model/names.lua has them
--   exact              patterns of parameters that stay f32 where a file has them so, whatever the model computes in
--   passes             patterns of tensors of a folder that are not read, and saved as they are
--   stored(name, tensor, plain, model)   {{name, tensor}...} of a parameter as checkpoints have it, nil if as usual;
--                      plain(name): a parameter's tensor, decoded
--   transposed(name)   whether a checkpoint has this matrix as [in, out]. GGUF and the model have [out, in].
--   refuses            similar architectures, and what each has that is not supported: {{name, what}...}

local list_files = require "qeng.library_files"
local q = require "qeng.core"

local architectures = { known = {} }

for _, name in ipairs(list_files "qeng/models") do
  table.insert(architectures.known, require("qeng.models." .. name:match "^(.*)%.lua$"))
end

-- Runs the user's model file at `path` and returns its table; nil without a path. A model's own folder is not searched.
function architectures.read(path)
  if not path then return nil end
  local chunk, why = loadstring(q.fs.read(path), "@" .. path)
  if not chunk then q.error("format", ("%s: %s"):format(path, why)) end
  local arch = chunk()
  for name, kind in pairs { hf = "string", model_type = "string", config = "function", build = "function" } do
    if type(arch) ~= "table" or type(arch[name]) ~= kind then
      q.error("format", ("%s: returns no model: expected a table with hf, model_type, config and build"):format(path))
    end
  end
  return arch
end

-- Whether one of the patterns of arch[list] fits a name.
local function fits(arch, list, name)
  for _, pattern in ipairs(arch[list] or {}) do
    if name:find(pattern) then return true end
  end
  return false
end
function architectures.is_exact(arch, name) return fits(arch, "exact", name) end
-- A head that drafts tokens (model/mtp.lua) may lie beside any model.
function architectures.passes(arch, name) return name:find "^mtp%." ~= nil or fits(arch, "passes", name) end

-- Refuses an architecture that no model file has. name_of(arch): how an architecture is called where `name` comes from.
function architectures.unknown(path, name, name_of)
  local list, seen = {}, {}
  for _, arch in ipairs(architectures.known) do
    for _, refused in ipairs(arch.refuses or {}) do
      if refused[1] == name then
        q.error("unsupported", ("%s: architecture %s needs %s, which is not supported"):format(path, name, refused[2]))
      end
    end
    local own = name_of(arch)
    if own and not seen[own] then list[#list + 1], seen[own] = own, true end
  end
  table.sort(list)
  q.error("unsupported", ("%s: architecture %s is not known; known are %s (a new one is a file in scripts/qeng/models, "
    .. "or one of your own: --model-file)"):format(path, tostring(name), table.concat(list, ", ")))
end

-- The model file and the settings of a config (model/config.lua). A key that neither uses is refused. own: the user's
-- model file, which then has to be the one that is asked for.
function architectures.of(file, own)
  local names = file.values.architectures
  local name, kind = type(names) == "table" and names[1] or nil, file.values.model_type
  for _, arch in ipairs(own and { own } or architectures.known) do
    if arch.hf == name or (not name and arch.model_type == kind) then
      if type(kind) == "string" and kind ~= arch.model_type then
        q.error("unsupported", ("%s: architectures says %s, whose model_type is %s, but model_type is %s: transformers "
          .. "goes by model_type; correct the wrong one"):format(file.path, arch.hf, arch.model_type, kind))
      end
      local c = arch.config(file)
      c.names, file.transposed = arch.names, arch.transposed
      file:finish()
      return arch, c
    end
  end
  if own then
    q.error("value", ("%s: is of architecture %s, and the model file is of %s: leave it out, or change its hf")
      :format(file.path, tostring(name or kind), own.hf))
  end
  architectures.unknown(file.path, name or kind, function(arch) return arch.hf end)
end

return architectures
