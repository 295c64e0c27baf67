-- What checkpoints call the parts of a decoder. A model file's `names` has other words than these.

local names = {
  most = { body = "model", embed = "embed_tokens", positions = "embed_positions", layers = "layers", norm = "norm" },
}

-- A parameter's name in the words of most: "transformer.h.3.ln_1" is "model.layers.3.ln_1". of: a model or model file.
function names.plain(of, name)
  local own = type(of) == "table" and of.names
  local rest = own and name:match("^" .. own.body .. "%.(.*)$")
  if not rest then return name end
  for kind, word in pairs(names.most) do
    local after = kind ~= "body" and rest:match("^" .. own[kind] .. "(%..*)$")
    if after then return "model." .. word .. after end
  end
  return "model." .. rest
end

return names
