-- Writes a small model of gated delta nets that remembers 10,000 tokens as a folder, and documents with the logits that
-- it gives them in one row as FOLDER/packed.json, for folders_check.py:
--   qeng tests/peers/packed.lua FOLDER
package.path = (arg[0]:match "^(.*/)" or "./") .. "../lua/?.lua;" .. package.path
local q = require "qeng"
local hybrid = require "hybrid_model"

local documents, ids = {}, {}
for i, length in ipairs { 90, 3, 70 } do
  ids[i] = q.json.array { unpack(hybrid.tokens, 1, length) }
  documents[i] = { tokens = ids[i], mask = {} }
end
local model = hybrid.fresh({}, { weights = hybrid.slow })
model:save(arg[1])
local logits = q.no_grad(model.packed_logits, model, q.pack(documents)):table()
q.fs.write(arg[1] .. "/packed.json", q.json.encode { documents = q.json.array(ids), logits = logits })
