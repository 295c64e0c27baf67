-- The model files of scripts/qeng/models, and which of them a config.json asks for.

local q = require "qeng.core"

local architectures = {}

local known = {}
for _, name in ipairs { "absolute", "gemma", "gemma3", "llama", "mistral", "qwen2", "qwen3" } do
  local arch = require("qeng.models." .. name)
  known[arch.hf] = arch
end

-- What keeps an architecture out that looks like a known one.
local lacking = { Gemma2ForCausalLM = "attention logit soft-capping" }

-- file: a config (scripts/qeng/model/config.lua). Returns the model file and its settings; a key that neither uses is refused.
function architectures.of(file)
  local names = file.values.architectures
  local name, kind = type(names) == "table" and names[1] or nil, file.values.model_type
  for _, arch in pairs(known) do
    if arch.hf == name or (not name and arch.model_type == kind) then
      if type(kind) == "string" and kind ~= arch.model_type then
        q.error("unsupported", ("%s: architectures says %s, whose model_type is %s, but model_type is %s: transformers goes by model_type; correct the wrong one")
          :format(file.path, arch.hf, arch.model_type, kind))
      end
      local c = arch.config(file)
      file:finish()
      return arch, c
    end
  end
  if lacking[name] then
    q.error("unsupported", ("%s: architecture %s needs %s, which is not supported"):format(file.path, name, lacking[name]))
  end
  local list = {}
  for hf in pairs(known) do list[#list + 1] = hf end
  table.sort(list)
  q.error("unsupported", ("%s: architecture %s is not known; known are %s (a new one is a file in scripts/qeng/models)")
    :format(file.path, tostring(name or kind), table.concat(list, ", ")))
end

return architectures
