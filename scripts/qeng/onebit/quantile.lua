-- The normal distribution's quantile (Acklam's rational approximation, relative error below 1.2e-9).

local quantile = {}

local a = { -3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02, 1.383577518672690e+02,
  -3.066479806614716e+01, 2.506628277459239e+00 }
local b = { -5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
  -1.328068155288572e+01 }
local c = { -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00, -2.549732539343734e+00,
  4.374664141464968e+00, 2.938163982698783e+00 }
local d = { 7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00 }

local function polynomial(coefficients, x, last)
  local sum = 0
  for _, coefficient in ipairs(coefficients) do sum = sum * x + coefficient end
  return last and sum * x + last or sum
end

-- z with P(Z < z) = p, 0 < p < 1.
function quantile.normal(p)
  if p < 0.02425 then
    local r = math.sqrt(-2 * math.log(p))
    return polynomial(c, r) / polynomial(d, r, 1)
  elseif p > 1 - 0.02425 then
    return -quantile.normal(1 - p)
  end
  local centred = p - 0.5
  local r = centred * centred
  return polynomial(a, r) * centred / polynomial(b, r, 1)
end

-- z with P(|Z| > z) = share; beyond any z for a share of nothing.
function quantile.two_sided(share)
  if share <= 0 then return math.huge end
  if share >= 1 then return 0 end
  return -quantile.normal(share / 2)
end

return quantile
