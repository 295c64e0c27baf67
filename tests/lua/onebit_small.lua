-- For the tests of one-bit training: a small model of one-bit weights, its batches, and a digest of it.

local q = require "qeng"

local small = {}

small.values = {
  architectures = { "QengAbsoluteForCausalLM" }, model_type = "qeng_absolute", vocab_size = 61, hidden_size = 64,
  num_hidden_layers = 2, num_attention_heads = 2,
  num_key_value_heads = 2, intermediate_size = 96, max_position_embeddings = 64, rms_norm_eps = 1e-6,
  hidden_act = "silu", tie_word_embeddings = false,
}

function small.batch(step)
  local micro_batch = q.micro_batch(48, 2)
  local ids, targets, positions = {}, {}, {}
  for i = 0, 47 do
    ids[i + 1], targets[i + 1], positions[i + 1] = (i * 7 + step * 3) % 61, (i * 7 + step * 3 + 7) % 61, i % 24
  end
  micro_batch.tokens:set(ids)
  micro_batch.targets:set(targets)
  micro_batch.positions:set(positions)
  micro_batch.cu_q:set { 0, 24, 48 }
  micro_batch.scale:fill(1 / 48)
  return micro_batch
end

-- The tensors of a list of parameters.
function small.tensors(parameters)
  local list = {}
  for i, parameter in ipairs(parameters) do list[i] = parameter.tensor end
  return list
end

-- A digest of the weights that are bits.
function small.digest(model)
  local parts = {}
  for _, layer in ipairs(model.linears) do parts[#parts + 1] = layer.weight:hash() end
  return table.concat(parts)
end

return small
