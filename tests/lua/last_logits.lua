-- What tests of golden logits share: the logits of a text's last token, and the distance of two lists of numbers.
local last_logits = {}

function last_logits.of(model, tokens)
  local rows = model:logits(tokens):table()
  return rows[#rows]
end

-- |a - b| / |a|
function last_logits.distance(a, b)
  local off, size = 0, 0
  for i = 1, math.max(#a, #b) do off, size = off + (a[i] - b[i]) ^ 2, size + a[i] ^ 2 end
  return math.sqrt(off / size)
end

return last_logits
