-- Looks at what a run will be trained on, before it begins. Refuses data from which nothing can be learned, and tells
-- what becomes of documents longer than a row.

local options = require "qeng.console.options"
local q = require "qeng.core"

local trained_data = {}

options.set("long", {
  { "long", "auto", "documents longer than a row: auto splits texts and leaves out conversations, truncate keeps the "
    .. "beginning", choices = { "auto", "split", "truncate", "drop" } },
})

local kept = { split = "split", truncated = "cut to their first tokens" }

-- "note: 12 conversations, 2 of them held out, are longer than a row of 512 tokens and are left out"
local function note(noun, training, held, row_tokens, fate)
  local count = training + held
  local one = count == 1
  local of_them = held > 0 and (one and ", held out," or (", %d of them held out,"):format(held)) or ""
  return ("note: %d %s%s%s %s longer than a row of %d tokens and %s %s"):format(count, noun, one and "" or "s", of_them,
    one and "is" or "are", row_tokens,
    one and "is" or "are", fate)
end

-- plan: of the training documents (Batches:plan). held: of the held-out ones, or nil. opt: row_tokens, long. Returns
-- whether there is a held-out loss to compute.
function trained_data.check(plan, held, opt, speak)
  local by_itself, row = opt.long == "auto", opt.row_tokens
  local hint = opt.long == "truncate" and "--long split" or "--long split or truncate"
  if plan.batches == 0 and plan.dropped > 0 then
    q.error("value",
        ("train: each of the %d training documents is longer than a row of %d tokens%s and is left out: give " ..
          "longer rows (--row-tokens), or %s"):format(
      plan.dropped, row, opt.long == "truncate" and ", has no trained token before its end" or "", hint))
  end
  if plan.batches == 0 then
    q.error("value", "train: no training document is left; the data are empty or all held out")
  end
  if plan.trained_tokens == 0 then
    q.error("value",
        ("train: none of the %d training documents has a trained token, so nothing would be learned: give " ..
          "records with an answer of the assistant, a completion or text. recipes/inspect.lua shows what is " ..
          "trained of each")
      :format(plan.documents))
  end
  for _, field in ipairs { "split", "truncated", "dropped" } do
    local training, withheld = plan[field], held and held[field] or 0
    if training + withheld > 0 then
      local noun = not by_itself and "document" or field == "split" and "text" or "conversation"
      local fate = kept[field] or opt.long == "truncate" and "left out: no token that fits is trained" or "left out"
      if field == "dropped" and by_itself then
        fate = fate .. (" (%s keeps %s)"):format(hint, training + withheld == 1 and "it" or "them")
      end
      speak:say(note(noun, training, withheld, row, fate))
    end
  end
  local evaluates = held ~= nil and held.trained_tokens > 0
  if held and not evaluates then
    speak:say "note: no token of the held-out documents is trained: there is no held-out loss"
  end
  return evaluates
end

return trained_data
