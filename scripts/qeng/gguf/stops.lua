-- The ids that end an answer of a GGUF file: those of its entries, and those that llama.cpp knows by name. Many files
-- list eos alone, and end a turn with a token that only its name tells. And the ids that are never drawn.

local stops = {}

local names = {
  "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eom_id|>", "<|end_of_text|>",
  "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<EOT>",
  "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<eos>", "</s>", "<｜end▁of▁sentence｜>",
}

-- The id of <|end|> where it ends a channel and not the answer (gpt-oss, Solar), or nil.
local function end_of_channel(tokenizer)
  local calls = tokenizer:id "<|call|>" or tokenizer:id "<|calls|>"
  return calls and (tokenizer:id "<|return|>" or tokenizer:id "<|flush|>") and tokenizer:id "<|end|>" or nil
end

-- The special tokens that llama.cpp knows by name, in order.
function stops.named(tokenizer)
  local list, channel = {}, end_of_channel(tokenizer)
  for _, name in ipairs(names) do
    local id = tokenizer:id(name)
    if id and id ~= channel and tokenizer:is_special(id) then list[#list + 1] = id end
  end
  return list
end

-- The ids of an open file, each once. One of qeng's entries has those that llama.cpp has no key for
-- (gguf/metadata.lua). tokenizer: the file's, or nil.
function stops.of_file(file, tokenizer)
  local ids, seen, channel = {}, {}, tokenizer and end_of_channel(tokenizer)
  local function take(id)
    if type(id) ~= "number" or seen[id] or id == channel then return end
    ids[#ids + 1], seen[id] = id, true
  end
  for _, key in ipairs { "eos", "eot", "eom" } do take(file:get("tokenizer.ggml." .. key .. "_token_id")) end
  local others = file:get "qeng.stop_token_ids"
  for _, id in ipairs(type(others) == "table" and others or {}) do take(id) end
  for _, id in ipairs(tokenizer and stops.named(tokenizer) or {}) do take(id) end
  return ids
end

function stops.suppressed(file)
  local ids, given = {}, file:get "tokenizer.ggml.suppress_tokens"
  for _, id in ipairs(type(given) == "table" and given or {}) do
    if type(id) == "number" and id >= 0 then ids[#ids + 1] = id end
  end
  return ids
end

return stops
