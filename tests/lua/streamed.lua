-- Compares a model whose weights are streamed with a resident one, for tests. The caller chooses the device.
local q = require "qeng"

local streamed = {}

function streamed.flat(tensor) return tensor:reshape({ tensor:elements() }):table() end

-- Trains a LoRA adapter of a model. how: "eager", "captured", "recomputed"; opt: rank, lr, steps, after (called with
-- the losses so far after each step). Returns the losses and the values of the adapter.
function streamed.train(model, micro_batch, how, opt)
  model:lora { rank = opt.rank, seed = 3 }
  model.recompute = how == "recomputed"
  local parameters, losses, adapter = {}, {}, {}
  for i, parameter in ipairs(model:trainable()) do parameters[i] = parameter.tensor end
  local adamw = q.adamw_state(parameters, {})
  local function pass()
    local loss = model:loss(micro_batch)
    loss:backward()
    return loss
  end
  local program, result
  if how == "captured" then program, result = q.capture(pass) end
  for _ = 1, opt.steps do
    if program then
      program:run()
      losses[#losses + 1] = result:item()
    else
      losses[#losses + 1] = q.scope(function() return pass():item() end)
    end
    adamw:step { lr = opt.lr, clip = 1 }
    opt.after(losses)
  end
  if program then program:free() end
  for _, tensor in ipairs(parameters) do
    for _, value in ipairs(streamed.flat(tensor)) do adapter[#adapter + 1] = value end
  end
  return losses, adapter
end

-- The tokens that a model goes on with after a prompt, greedily.
function streamed.generate(model, prompt, count)
  local engine = model:engine { max_batch = 2, pages = 16 }
  local request = engine:submit { ids = prompt, max_tokens = count, temperature = 0, stop_ids = {} }
  engine:finish()
  engine:close()
  return request.output
end

-- Compiled traces hold what they were compiled for, models too. What a finalizer lets go is collected a cycle later.
function streamed.collect()
  jit.flush()
  for _ = 1, 3 do collectgarbage() end
end

-- fn(limit) under the least limit that it fits in, of limits from somewhat less than `needed` on: the process may
-- shrink by then. Where fn does not fit, it leaves nothing that streams. fn returns "loose" where the limit did not
-- make it stream. Then the process has shrunk more, and lower limits are tried.
function streamed.under_least_limit(needed, step, fn)
  for _, below in ipairs { 12e6, 36e6, 108e6 } do
    for limit = math.max(step, needed - below), needed + 300e6, step do
      streamed.collect()
      local ok, result = pcall(fn, math.floor(limit))
      if ok and result == "loose" then break end
      if ok then return result, limit end
      if type(result) ~= "table" or result.code ~= "memory" then error(result, 0) end
    end
  end
  error("no limit is enough, or none makes it stream", 2)
end

function streamed.same(what, one, other)
  assert(#one == #other and #one > 0, what .. ": other counts")
  for i = 1, #one do assert(one[i] == other[i], ("%s: value %d is %g and %g"):format(what, i, one[i], other[i])) end
end

return streamed
