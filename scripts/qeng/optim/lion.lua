-- q.optim.lion (Chen et al. 2023, arXiv 2302.06675): the sign of a momentum. It takes a third to a tenth of AdamW's lr,
-- and as many times its decay.

local optim = require "qeng.optim"

return optim.define("lion", { beta1 = 0.9, beta2 = 0.99 }, function(p)
  local m = p:state "m"
  p:move((p.opt.beta1 * m + (1 - p.opt.beta1) * p.g):sign())
  m:set(p.opt.beta2 * m + (1 - p.opt.beta2) * p.g)
end)
