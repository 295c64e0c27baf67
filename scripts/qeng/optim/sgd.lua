-- q.optim.sgd: gradient descent with momentum (Polyak 1964), or Nesterov's. m = momentum m + g; w -= lr m, or
-- lr (g + momentum m).

local optim = require "qeng.optim"

return optim.define("sgd", { momentum = 0.9, nesterov = false }, function(p)
  local momentum = p.opt.momentum
  if momentum == 0 then return p:move(p.g) end
  local m = p:state "m"
  m:set(momentum * m + p.g)
  p:move(p.opt.nesterov and p.g + momentum * m or m)
end)
