-- The engine knows no recipe. Its messages say what is wrong and what helps; here are the options with which a recipe
-- does that. hints(text) is the text, followed by the options whose words it has. A test (tests/layers.py) checks that
-- the words are the engine's.

local options = {
  { "the device's budget", "--device-budget" },
  { "fewer or shorter rows", "--rows, --row-tokens" },
  { "recompute activations", "--recompute" },
  { "stream the weights", "--weights stream" },
  { "without capturing", "--eager, in Lua eager = true" },
  { "hold nothing out", "--eval-share 0" },
  { "cut into paragraphs", "recipes/convert.lua --documents paragraph" },
  { "into documents by paragraph or line", "--documents" },
  { "the limit of a record", "--max-record" },
  { "can be resumed", "--resume" },
  { "resuming would go on", "--resume" },
  { "convert anew", "without --resume" },
  { "a share of bad records", "recipes/convert.lua --max-bad" },
  { "tell its format", "--format" },
  { "text has to be converted", "recipes/convert.lua" },
  { "copy the records that have tokens", "recipes/packets.lua filter --where 'tokens > 0'" },
  { "look into it", "recipes/inspect.lua" },
  { "the template chatml", "--template" },
  { "convert the unquantized model", "recipes/quantize.lua" },
  { "the receiver's log says why", "receiver.log in the cache's folder remote" },
}

return function(text)
  local found = {}
  for _, hint in ipairs(options) do
    if text:find(hint[1], 1, true) then found[#found + 1] = hint[2] end
  end
  return #found > 0 and ("%s (%s)"):format(text, table.concat(found, "; ")) or text
end
