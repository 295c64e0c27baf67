-- Shows records decoded, with the trained part marked: coloured on a terminal, between >> and << elsewhere.

local q = require "qeng.core"

local marked = {}

local function marks(to)
  if q.host.isatty(to) then return "\27[32m", "\27[0m" end
  return ">>", "<<"
end

-- The stretches of a record's first `most` tokens (all) that are trained throughout, or not at all: {text =,
-- trained =}. Without a tokenizer, or where it has no such token, the text has ids.
function marked.stretches(tokens, mask, tokenizer, most)
  local last, size = math.min(#tokens, most or #tokens), tokenizer and tokenizer:vocab_size() or 0
  local list, stretch = {}, {}
  for i = 1, last do
    local id = tokens[i]
    stretch[#stretch + 1] = id >= 0 and id < size and tokenizer:bytes(id) or id .. " "
    if i == last or mask[i] ~= mask[i + 1] then
      list[#list + 1], stretch = { text = table.concat(stretch), trained = mask[i] == 1 }, {}
    end
  end
  return list
end

-- change(text): applied to each stretch. to: the text's file descriptor.
local function joined(tokens, mask, tokenizer, to, change)
  local begin, finish = marks(to)
  local parts = {}
  for i, each in ipairs(marked.stretches(tokens, mask, tokenizer)) do
    local text = change(each.text)
    parts[i] = each.trained and begin .. text .. finish or text
  end
  return table.concat(parts)
end

-- Without a tokenizer it shows the ids.
function marked.text(tokens, mask, tokenizer)
  return joined(tokens, mask, tokenizer, 1, function(text) return text end)
end

-- Leaves out the middle of a long text, and characters that a terminal would obey.
local function short(text)
  text = text:gsub("[%z\1-\9\11-\31\127]", " ")
  if #text <= 160 then return text end
  return text:sub(1, 100):gsub("[\192-\255]?[\128-\191]*$", "") .. " ... " .. text:sub(-50):gsub("^[\128-\191]+", "")
end

-- One record of a dataset in a few lines: of the first hundred the first that is trained in part, else the first. nil
-- if there is no record.
function marked.sample(file, tokenizer, to)
  local number
  for record = 0, math.min(file:records(), 100) - 1 do
    local info = file:info(record)
    if info.tokens > 0 then number = number or record end
    if info.loss_tokens > 0 and info.loss_tokens < info.tokens - 1 then number = record; break end
  end
  local tokens, mask
  if number then tokens, mask = file:read(number) end
  if not tokens then return nil end
  local begin, finish = marks(to)
  local where = begin == ">>" and "between >> and <<" or begin .. "in green" .. finish
  local text = joined(tokens, mask, tokenizer, to, short):gsub("%s+$", ""):gsub("\n", "\n  ")
  return ("record %d, what is trained %s:\n  %s"):format(number, where, text)
end

return marked
