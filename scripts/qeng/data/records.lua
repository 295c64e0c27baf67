-- q.records: the objects of a small file, JSONL or a JSON array, in order and all in memory: for recipes with data of
-- their own shape. (q.packets is for training data of any size.)

local q = require "qeng.core"

local function fail(path, i, text) q.error("format", ("%s: record %d: %s"):format(path, i, text)) end

-- fields: names of fields that each object has to have as a text. opt: of q.json.decode. Errors name the record, from
-- 1.
return function(path, fields, opt)
  local content, list = q.fs.read(path), {}
  if content:match "^%s*%[" then
    local fine, found = pcall(q.json.decode, content, opt)
    if not fine then q.error("format", ("%s: %s"):format(path, found.message)) end
    list = found
  else
    for line in content:gmatch "[^\r\n]+" do
      if line:find "%S" then
        local fine, found = pcall(q.json.decode, line, opt)
        if not fine then fail(path, #list + 1, found.message) end
        list[#list + 1] = found
      end
    end
  end
  for i, record in ipairs(list) do
    if type(record) ~= "table" then fail(path, i, "no object") end
    for _, field in ipairs(fields or {}) do
      if type(record[field]) ~= "string" then fail(path, i, field .. " is no text") end
    end
  end
  if #list == 0 then q.error("value", path .. ": no records") end
  return list
end
