-- Follows a JSON value that comes in pieces, so that it can be passed on before it is whole.
--
--   local scan = json_pieces.new()
--   local after, state = scan:feed(text, at)   -- "more", "done" or "bad"; after: the first byte that it did not take
--
-- The bytes taken are a value, or the beginning of one, except that a number or a word is checked at its end. A number
-- or a word that is all of the value is done at the byte after it. Where the text was cut makes no difference.

local json_pieces = {}
local Scan = {}
Scan.__index = Scan

local most_nested, longest_word = 100, 1000  -- as deep as q.json reads; no number that means anything is longer
local words = { ["true"] = true, ["false"] = true, null = true }

function json_pieces.new() return setmetatable({ mode = "value", open = {}, word = "" }, Scan) end

local function is_word(text)
  if words[text] then return true end
  local whole, fraction, power = text:match "^%-?(%d+)(%.?%d*)([eE]?[%+%-]?%d*)$"
  return whole and not whole:find "^0%d" and fraction ~= "." and (power == "" or power:find "^[eE][%+%-]?%d+$")
    and true or false
end

-- A value is over: its string was a key, or what it stands in goes on.
local function over(self)
  if self.key then
    self.key, self.mode = false, "colon"
  else
    self.mode = #self.open == 0 and "over" or "after"
  end
end

local function begin(self, c)
  if c == '"' then
    self.mode = "string"
  elseif c == "{" or c == "[" then
    if #self.open == most_nested then return false end
    self.open[#self.open + 1] = c
    self.mode = c == "{" and "first_key" or "first_item"
  elseif c:find "[%-%dtfn]" then
    self.mode, self.word = "word", c
  else
    return false
  end
  return true
end

-- What a byte between strings and words does. False: it may not stand there.
local function sign(self, c)
  local mode, inside = self.mode, self.open[#self.open]
  if (mode == "after" or mode == "first_key" or mode == "first_item") and c == (inside == "{" and "}" or "]") then
    self.open[#self.open] = nil
    over(self)
  elseif mode == "value" or mode == "first_item" then
    return begin(self, c)
  elseif mode == "first_key" or mode == "key" then
    self.key, self.mode = true, "string"
    return c == '"'
  elseif mode == "colon" then
    self.mode = "value"
    return c == ":"
  else
    self.mode = inside == "{" and "key" or "value"
    return c == ","
  end
  return true
end

function Scan:feed(text, at)
  while self.mode ~= "over" do
    if at > #text then return at, "more" end
    local mode = self.mode
    if mode == "string" then
      local found = text:find('[%z\1-\31"\\]', at)
      if not found then return #text + 1, "more" end
      local c = text:sub(found, found)
      if c == '"' then over(self) elseif c == "\\" then self.mode = "escape" else return found, "bad" end
      at = found + 1
    elseif mode == "escape" then
      local c = text:sub(at, at)
      if not c:find '["\\/bfnrtu]' then return at, "bad" end
      self.mode, self.digits, at = c == "u" and "digits" or "string", 0, at + 1
    elseif mode == "digits" then
      if not text:find("^%x", at) then return at, "bad" end
      self.digits, at = self.digits + 1, at + 1
      if self.digits == 4 then self.mode = "string" end
    elseif mode == "word" then
      local room = at + longest_word - #self.word - 1
      local _, to = text:sub(1, room):find("^[%w%+%-%.]*", at)
      self.word, at = self.word .. text:sub(at, to), to + 1
      if #self.word == longest_word then return at, "bad" end
      if at <= #text then
        if not is_word(self.word) then return at, "bad" end
        over(self)
      end
    else
      local found = text:find("[^ \t\r\n]", at)
      if not found then return #text + 1, "more" end
      if not sign(self, text:sub(found, found)) then return found, "bad" end
      at = found + 1
    end
  end
  return at, "done"
end

return json_pieces
