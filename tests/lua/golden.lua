-- Reads tests/golden/parity: a model, its documents, and packed micro-batches made of them by hand (independent of the
-- packer).

local q = require "qeng"

q.device { device = os.getenv "QENG_TEST_DEVICE" or "auto" }

local golden = {}
local root = (arg[0]:match("^(.*)/tests/") or ".") .. "/tests/golden/parity/"

golden.names = q.fs.list(root)

-- {dir, file (safetensors), values (golden.json)}
function golden.open(name)
  local dir = root .. name
  return { dir = dir, file = q.safetensors.open(dir .. "/golden.safetensors"),
    values = q.json.decode(q.fs.read(dir .. "/golden.json")) }
end

-- A micro-batch of the documents laid end to end; trained: the number of targets, longest: tokens of the longest
-- document.
function golden.micro_batch(documents)
  local tokens, targets, positions, cu, trained, longest = {}, {}, {}, { 0 }, 0, 0
  for _, document in ipairs(documents) do
    for i, token in ipairs(document.tokens) do
      tokens[#tokens + 1], positions[#positions + 1] = token, i - 1
      local target = document.mask[i + 1] == 1
      targets[#targets + 1] = target and document.tokens[i + 1] or -1
      if target then trained = trained + 1 end
    end
    cu[#cu + 1] = #tokens
    longest = math.max(longest, #document.tokens)
  end
  return {
    tokens = q.tensor(tokens, "i32"), targets = q.tensor(targets, "i32"), positions = q.tensor(positions, "i32"),
    cu_q = q.tensor(cu, "i32"), scale = q.tensor({ 1 / math.max(trained, 1) }),
  }, trained, longest
end

function golden.flat(tensor)
  return tensor:reshape({ tensor:elements() }):table()
end

-- The Euclidean norm of several lists together.
function golden.norm(...)
  local sum = 0
  for _, list in ipairs { ... } do
    for i = 1, #list do sum = sum + list[i] * list[i] end
  end
  return math.sqrt(sum)
end

-- Largest |a - b|, and |a - b| / |b| in the Euclidean norm.
function golden.differences(a, b)
  local largest, sum, norm = 0, 0, 0
  assert(#a == #b, "sizes differ")
  for i = 1, #a do
    local d = math.abs(a[i] - b[i])
    assert(d == d, "not a number")
    largest, sum, norm = math.max(largest, d), sum + d * d, norm + b[i] * b[i]
  end
  return largest, math.sqrt(sum) / math.max(math.sqrt(norm), 1e-12)
end

-- The adapter of the golden file, b zero where the curves start from zero.
function golden.set_adapter(model, g, zero_b)
  local setup = g.values.lora
  model:lora { rank = setup.rank, alpha = setup.alpha, targets = setup.target_modules }
  for _, parameter in ipairs(model:trainable()) do
    local b = parameter.name:find("lora_B", 1, true)
    if b and zero_b then parameter.tensor:fill(0)
    else parameter.tensor:copy(g.file:tensor("lora.base_model.model." .. parameter.name)) end
  end
end

-- The losses of 12 steps of AdamW on a micro-batch.
function golden.train(model, micro_batch)
  local parameters, losses = {}, {}
  for i, parameter in ipairs(model:trainable()) do parameters[i] = parameter.tensor end
  local adamw = q.adamw_state(parameters, {})
  for step = 1, 12 do
    losses[step] = q.scope(function()
      local loss = model:loss(micro_batch)
      loss:backward()
      return loss:item()
    end)
    adamw:step { lr = 5e-3, clip = 1 }
  end
  return losses
end

return golden
