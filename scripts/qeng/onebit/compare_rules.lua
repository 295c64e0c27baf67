-- The rules that one-bit weights are compared with (recipes/onebit_compare.lua): AdamW trains each of them, and they
-- need more memory than bits. None has another use.
--
--   latent  straight-through: f32 latent weights, of which the bits are the signs (12 bytes a weight)
--   grid    no latent copy: weights of 2 levels + 1 values, rounded at random after each step (Zhao et al. 2024,
--           arXiv 2412.04787); kept as f32 here, so it shows what the rule learns, not what it saves
--   dense   ordinary f32 or bf16 weights, drawn with the same spread
--
-- A rule may draw weights of its own for onebit/init.lua (weight), and makes a layer learn (learn). dense has no scales
-- of rows (unscaled). model.latents lists what AdamW trains.

local q = require "qeng.core"

local rules = { latent = {}, grid = {}, dense = { unscaled = true } }

function rules.grid.weight(shape, how)
  return q.uniform(shape, { low = -1, high = 1, seed = how.seed, subsequence = how.subsequence, label = "weights" })
end

function rules.dense.weight(shape, how)
  return q.randn(shape, { std = 1 / math.sqrt(shape[2]), seed = how.seed, subsequence = how.subsequence,
    dtype = how.dtype, label = "weights" })
end

function rules.latent.learn(model, layer, index, seed)
  local latent = q.uniform(layer.weight:shape(), { low = -0.3, high = 0.3, seed = seed, subsequence = 5000 + index,
    label = "latent" }):label(layer.name .. ".latent")
  latent:requires_grad(true)
  q.onebit.learn_latent(layer.weight, latent)
  q.onebit.pack_signs(latent, layer.weight)
  table.insert(model.latents, { name = layer.name .. ".latent", tensor = latent, bits = layer.weight })
end

local function as_it_is(model, layer)
  layer.weight:requires_grad(true)
  table.insert(model.latents, { name = layer.name .. ".weight", tensor = layer.weight })
end
rules.grid.learn = as_it_is

-- writes: whether the layer writes to the residual stream.
function rules.dense.learn(model, layer, _, _, writes)
  if writes then layer.weight:copy(layer.weight * (1 / math.sqrt(2 * model.config.layers))) end
  as_it_is(model, layer)
end

-- Follows a step of the latents' optimizer: clips the latents and turns them into bits or grid points. subsequence: of
-- the random numbers that round.
function rules.settle(model, subsequence)
  for index, latent in ipairs(model.latents) do
    if model.rule == "grid" then
      q.onebit.clip_to_grid(latent.tensor, { levels = model.grid_levels, subsequence = (subsequence or 7000) + index })
    elseif model.rule == "latent" then
      q.onebit.clip_to_grid(latent.tensor)
      q.onebit.pack_signs(latent.tensor, latent.bits)
    end
  end
end

return rules
