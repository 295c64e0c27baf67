-- Where facts are put: the last matrix of a layer's MLP. It reads keys [ffn] and gives values [hidden] (Geva et al.
-- 2021, arXiv 2012.14913).

local hooks = require "qeng.model.hooks"
local q = require "qeng.core"

local sites = {}

local last_matrices = { down_proj = true, c_proj = true }

-- The site of layer `index`, from 0: layer (the linear layer), parameter (its entry in model.parameters), name, place
-- (of the MLP's output).
function sites.of(model, index)
  if type(index) ~= "number" or index < 0 or index >= model.config.layers or index % 1 ~= 0 then
    q.error("value", ("edit: there is no layer %s; the model has layers 0 to %d"):format(tostring(index),
      model.config.layers - 1))
  end
  if model.stream then q.error("unsupported", "edit: the weights are streamed; load the model in memory") end
  local found
  for _, layer in ipairs(model.linears) do
    local at, role = layer.name:match "%.(%d+)%.mlp%.([%w_]+)$"
    if tonumber(at) == index and last_matrices[role] then found = layer end
  end
  if not found then
    q.error("unsupported", ("edit: layer %d has no mlp.down_proj or mlp.c_proj; other MLPs, as those of experts, are "
      .. "not edited"):format(index))
  end
  local name = found.name .. ".weight"
  for what, given in pairs { ["an adapter: merge it first"] = found.lora, ["rotated columns"] = found.rotation,
    ["a scale for each row"] = found.row_scale } do
    if given then q.error("unsupported", ("edit: %s has %s"):format(name, what)) end
  end
  for _, parameter in ipairs(model.parameters) do
    if parameter.name == name then
      return { index = index, layer = found, parameter = parameter, name = name,
        place = ("layers.%d.mlp"):format(index) }
    end
  end
end

-- Calls see(site, x) with the keys [t, ffn] of each site of a list, in order of layers, while `input` (as for
-- Model:hidden) passes as far as `place`, whose output goes to out(x). Without a gradient.
function sites.pass(model, list, place, input, see, out)
  local by_name, before = {}, model.observe
  for _, site in ipairs(list) do by_name[site.name] = site end
  model.observe = function(name, x)
    if by_name[name] then see(by_name[name], x) end
  end
  local ok, err = pcall(q.no_grad, q.scope, hooks.up_to, model, place, out, function() model:hidden(input) end)
  model.observe = before
  if not ok then error(err, 0) end
end

-- The keys {[layer] = [1, ffn]} of sites and what leaves `place` [1, hidden], f32: sums over the rows of a packed batch
-- times `weights`, a list of numbers for each row.
function sites.sums(model, list, place, packed, rows, weights)
  local function of(x)
    return q.keep(q.tensor({ weights }):matmul(x:index_select(1, rows):to "f32"):compute())
  end
  local keys, values = {}, nil
  sites.pass(model, list, place, packed, function(site, x) keys[site.index] = of(x) end,
    function(x) values = of(x) end)
  return keys, values
end

return sites
