-- The plainest decoder: pre-norm blocks of attention and SwiGLU, with learned positions that are added to the
-- embedding. No published model is of this kind. It is for small experiments.

local nn = require "qeng.model.nn"

local Absolute = { hf = "QengAbsoluteForCausalLM", model_type = "qeng_absolute" }

function Absolute.config(file)
  local c = file:decoder(1e4)
  c.learned_positions, c.rope = true, nil
  return c
end

function Absolute.build(model, source, c)
  local block = { mixer = nn.attention { no_rope = true } }
  return nn.decoder(model, source, c, function(p) return nn.block(p, c, block) end)
end

return Absolute
