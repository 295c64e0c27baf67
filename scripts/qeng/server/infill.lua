-- Texts to be filled in: what stands before and after a gap, in the tokens that models of code are trained with
-- (fill in the middle, Bavarian et al. 2022, arXiv 2207.14255: prefix, suffix, then the middle).

local q = require "qeng.core"

local infill = {}

-- The tokens before the prefix, the suffix and the middle, as families of models spell them.
local spellings = {
  { "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>" },  -- Qwen2.5, Granite
  { "<fim_prefix>", "<fim_suffix>", "<fim_middle>" },  -- StarCoder, SmolLM
  { "<fim-prefix>", "<fim-suffix>", "<fim-middle>" },
  { "<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>" },  -- DeepSeek
  { "▁<PRE>", "▁<SUF>", "▁<MID>" },  -- Code Llama
}

-- The ids of a prompt that asks for the text between, and of tokens that end it; nil where the model has no tokens for
-- that.
function infill.ids(tokenizer, prefix, suffix)
  for _, names in ipairs(spellings) do
    local before, after, middle = tokenizer:id(names[1]), tokenizer:id(names[2]), tokenizer:id(names[3])
    if before and after and middle then
      local ids, info = {}, tokenizer:info()
      local function add(list)
        for _, id in ipairs(list) do ids[#ids + 1] = id end
      end
      if info.add_bos and info.bos then add { info.bos } end
      add { before }
      add(tokenizer:encode(prefix))
      add { after }
      add(tokenizer:encode(suffix))
      add { middle }
      return ids
    end
  end
  return nil
end

-- The ids, or the error that a route gives.
function infill.must(tokenizer, prefix, suffix, param)
  return infill.ids(tokenizer, prefix, suffix)
    or q.error("value", ("'%s': this model has no tokens for filling in"):format(param))
end

return infill
