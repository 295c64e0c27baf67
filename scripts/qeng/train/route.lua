-- The names of SRC and DST in packets, and which parameters the packets of a destination move:
--
--   ALL        everything that is trained
--   ATTENTION  the query, key, value and output projections with their biases and adapters; of a recurrent mixer
--              (Mamba-2) all but its norm
--   FFN        the gate, up and down projections with their adapters
--   NORM       the weight of every norm
--   EMBEDDING, LM_HEAD  the two ends; either moves a tied matrix by its whole gradient
--   LORA       every adapter

local part_names = require "qeng.model.names"
local q = require "qeng.core"

local route = {}

local sources = {
  [0x01] = "TEXT_CORPUS", [0x02] = "CODE_REPO", [0x03] = "CHAT", [0x04] = "INSTRUCTION", [0x05] = "GRADIENT",
  [0x06] = "ACTIVATION", [0x07] = "KV_CACHE", [0x08] = "SYNTHETIC",
}
local destinations = {
  [0x00] = "ALL", [0x01] = "EMBEDDING", [0x02] = "ATTENTION", [0x03] = "FFN", [0x04] = "NORM", [0x05] = "LORA",
  [0x06] = "LM_HEAD",
}

function route.source_name(number) return sources[number] or ("0x%02x"):format(number) end
function route.destination_name(number) return destinations[number] or ("0x%02x"):format(number) end

-- "chat, 0x41" -> { 3, 65 }; nil for an empty text.
function route.source_list(text)
  local list = {}
  for word in (text or ""):gmatch("[^,%s]+") do
    local number = tonumber(word)
    for value, name in pairs(sources) do
      if name == word:upper() then number = value end
    end
    if not number or number < 0 or number > 255 or number % 1 ~= 0 then
      local known = {}
      for _, name in pairs(sources) do known[#known + 1] = name:lower() end
      table.sort(known)
      q.error("usage", ("source %s: a number from 0 to 255 expected, or one of %s"):format(
        word, table.concat(known, ", ")))
    end
    list[#list + 1] = number
  end
  return #list > 0 and list or nil
end

-- Whether packets of the destination (a name) move the parameter.
local function moves(destination, name)
  local adapted = name:match "^(.*)%.lora_[^.]+" -- .lora_A.weight, .lora_B.weight, .lora_magnitude_vector
  local adapter, layer = adapted ~= nil, adapted and adapted .. ".weight" or name
  if destination == "ALL" then return true end
  if destination == "LORA" then return adapter end
  local norm = layer:find("norm%.%a+$") ~= nil or layer:find("%.ln_%w+%.") ~= nil
  if destination == "NORM" then return norm end
  if destination == "ATTENTION" then
    return not norm and (layer:find("attn%.") ~= nil or layer:find("%.mixer%.") ~= nil)
  end
  if destination == "FFN" then
    return not norm and (layer:find("%.mlp%.") or layer:find("%.block_sparse_moe%.")) ~= nil
  end
  if destination == "EMBEDDING" then return layer:find("embed_tokens%.") ~= nil end
  return layer:find("^lm_head%.") ~= nil
end

-- How to train on packets with these destinations ({[DST] = records}). Nil where all of them move all that is trained.
-- A destination that moves nothing is an error. Otherwise:
--   groups  the optimizer's group of each parameter of model:trainable()
--   frozen  {[DST] = tensors that its packets leave alone}
--   active  {[DST] = groups that they move}
function route.plan(model, records)
  local parameters = model:trainable()
  local list = {}
  for number in pairs(records) do list[#list + 1] = number end
  table.sort(list)
  local keys, frozen, everything = {}, {}, true
  for i = 1, #parameters do keys[i] = "" end
  for _, number in ipairs(list) do
    local destination = destinations[number]
    if not destination then
      q.error("value", ("train: %d packets are addressed to destination 0x%02x, which no parameter has"):format(
        records[number], number))
    end
    frozen[number] = {}
    for i, parameter in ipairs(parameters) do
      local tied = destination == "LM_HEAD" and parameter.tensor == model.head
      if moves(destination, part_names.plain(model.arch, parameter.name)) or tied then
        keys[i] = keys[i] .. number .. " "
      else
        table.insert(frozen[number], parameter.tensor)
      end
    end
    if #frozen[number] == #parameters then
      q.error("value",
          ("train: %d packets are addressed to %s, and nothing of that is trained (mode %s): train it (--mode " ..
            "full, other --targets), or leave these packets out")
        :format(records[number], destination, model.mode))
    end
    everything = everything and #frozen[number] == 0
  end
  if everything then return nil end
  for _, parameter in ipairs(parameters) do
    if parameter.rate then
      q.error("unsupported", "train: addressed packets (DST) and one-bit weights: leave the destinations out")
    end
  end
  local groups, number_of, count = {}, {}, 0
  for i, key in ipairs(keys) do
    if not number_of[key] then number_of[key], count = count, count + 1 end
    groups[i] = number_of[key]
  end
  local active = {}
  for _, number in ipairs(list) do
    active[number] = {}
    for key, group in pairs(number_of) do
      if (" " .. key):find(" " .. number .. " ", 1, true) then table.insert(active[number], group) end
    end
    table.sort(active[number])
  end
  return { groups = groups, frozen = frozen, active = active }
end

return route
