-- The layers of a model that this process has, where peers have the others (scripts/qeng/peers). Such a model generates
-- (model:engine), and does nothing that passes all of its layers here.

local q = require "qeng.core"

local range = {}

-- The range {first = from 0, count =, ends = embedding, last norm and head are here} of q.load's option for a model of
-- settings c; nil where all is here.
function range.of(given, c)
  if not given then return nil end
  local first, count = given.first or 0, given.count
  if type(count) ~= "number" or first < 0 or count < 0 or first + count > c.layers or (first + count) % 1 ~= 0 then
    q.error("value", ("range: %s layers from layer %s; the model has %d"):format(tostring(count), tostring(first),
      c.layers))
  end
  return { first = first, count = count, ends = given.ends or false }
end

-- Refuses options of q.load that need the whole model.
function range.check(path, opt)
  if not opt.range then return end
  for name, why in pairs { writable = "is not trained", model_file = "is described by its own file" } do
    if opt[name] then q.error("unsupported", ("%s: a model of which peers have layers %s here"):format(path, why)) end
  end
  if opt.weights == "stream" then
    q.error("unsupported", path .. ": weights of which peers have layers are not streamed: --weights copy or map")
  end
end

-- Which of a file's tensors are of the range, by their names there: a list, or nil where all are. Tensors of no layer
-- are of the ends, and those of heads that draft tokens. One that is asked for and not in the list is an error
-- (Weights:load), so names that mislead are seen.
function range.names(all, given)
  if not given then return nil end
  local list, first = {}, given.first or 0
  for _, name in ipairs(all) do
    local layer = not name:find "^mtp%." and tonumber(name:match "%.(%d+)%.")
    local own = given.ends
    if layer and layer < (given.layers or math.huge) then own = layer >= first and layer < first + given.count end
    if own then list[#list + 1] = name end
  end
  return list
end

-- Has methods of a class refuse models of which peers have layers: what they do needs all of them here.
function range.guard(class)
  for _, name in ipairs { "lora", "full", "merge", "load_adapter", "save_adapter", "save", "save_gguf" } do
    local method = class[name]
    class[name] = function(self, ...)
      if self.range then
        q.error("unsupported", ("%s: peers have layers of this model, and it needs all of them here%s"):format(name,
          name == "load_adapter" and ": give the adapter to requests (read_adapter)" or ""))
      end
      return method(self, ...)
    end
  end
end

-- Refuses an adapter whose file has other tensors than the `taken` ones that this model's layers found there. Of a
-- range of layers the others are elsewhere: the coordinator adds up what each found.
function range.check_adapter(model, path, taken, all)
  if model.range or taken > 0 and taken == all then return end
  q.error("format", ("%s: %d tensors, of which this model has %d"):format(path, all, taken))
end

return range
