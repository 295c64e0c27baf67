-- q.optim.muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of a matrix made nearly
-- orthogonal, scaled so that it moves as far as AdamW does (Liu et al. 2025, arXiv 2502.16982), whose lr and decay it
-- takes. What is no matrix, or reads or writes tokens (adam(name, shape) says so), is updated by AdamW's rule.

local optim = require "qeng.optim"

local a, b, c = 3.4445, -4.7750, 2.0315  -- of x (a + b x^2 + c x^4), which brings singular values towards 1

-- Newton and Schulz's iteration.
local function orthogonal(x, rounds)
  local shape = x:shape()
  local turned = shape[1] > shape[2]
  if turned then x = x:transpose() end
  x = x / (x:norm() + 1e-7)
  for _ = 1, rounds do
    local square = x:matmul(x, { transpose_b = true })
    x = a * x + (b * square + c * square:matmul(square)):matmul(x)
  end
  return turned and x:transpose() or x
end

local function adam(p)
  local m, v, opt = p:state "m", p:state "v", p.opt
  m:set(opt.beta1 * m + (1 - opt.beta1) * p.g)
  v:set(opt.beta2 * v + (1 - opt.beta2) * p.g:square())
  p:move((m / (1 - opt.beta1 ^ p.t)) / ((v / (1 - opt.beta2 ^ p.t)):sqrt() + opt.eps))
end

local defaults = { momentum = 0.95, nesterov = true, rounds = 5, beta1 = 0.9, beta2 = 0.999, eps = 1e-8 }
function defaults.adam(name) return name:find "embed" or name:find "lm_head" or name:find "wte" or name:find "wpe" end

return optim.define("muon", defaults, function(p)
  local shape, momentum = p.w:shape(), p.opt.momentum
  if #shape ~= 2 or p.opt.adam(p.name, shape) then return adam(p) end
  local m = p:state "m"
  m:set(momentum * m + (1 - momentum) * p.g)
  local direction = p.opt.nesterov and momentum * m + (1 - momentum) * p.g or m
  p:move(orthogonal(direction, p.opt.rounds) * (0.2 * math.sqrt(math.max(shape[1], shape[2]))))
end)
