-- q.optim.adafactor (Shazeer & Stern 2018, arXiv 1804.04235) with a rate from outside: of a matrix' second moments the
-- means of rows and of columns alone, so that its state is as small as the two.

local optim = require "qeng.optim"

return optim.define("adafactor", { power = 0.8, eps = 1e-30, threshold = 1 }, function(p)
  local shape, opt = p.w:shape(), p.opt
  local rest = p.t ^ -opt.power  -- what the new square counts
  local square = p.g:square() + opt.eps
  local direction
  if #shape >= 2 then
    local rows, columns = {}, {}
    for d, size in ipairs(shape) do
      rows[d], columns[d] = d == #shape and 1 or size, d == #shape - 1 and 1 or size
    end
    local r, k = p:state("rows", rows), p:state("columns", columns)
    r:set((1 - rest) * r + rest * square:mean(-1, true))
    k:set((1 - rest) * k + rest * square:mean(-2, true))
    direction = p.g * (r / r:mean(-2, true)):rsqrt() * k:rsqrt()
  else
    local v = p:state "v"
    v:set((1 - rest) * v + rest * square)
    direction = p.g * v:rsqrt()
  end
  local size = (direction:square():mean()):sqrt() / opt.threshold
  p:move(direction / size:maximum(1))
end)
