-- llama.cpp's routes for texts and tokens: POST /tokenize, /detokenize and /apply-template.

local conversation = require "qeng.server.conversation"
local messages = require "qeng.server.messages"
local q = require "qeng.core"
local request = require "qeng.infer.request"

return function(server)
  server:route("POST", "/tokenize", function(call, given)
    local model = server:find(given.model).model
    local tokenizer = request.tokenizer(model)
    local ids = tokenizer:encode(given.content, { special = given.parse_special })
    local info = tokenizer:info()
    if given.add_special and info.add_bos then table.insert(ids, 1, info.bos) end
    local list = {}
    for i, id in ipairs(ids) do list[i] = given.with_pieces and { id = id, piece = tokenizer:decode { id } } or id end
    call:reply(200, { tokens = q.json.array(list) })
  end, { says = "the tokens of a text", fields = {
    { "model", "string" }, { "content", "string", required = true }, { "add_special", "boolean", default = false },
    { "parse_special", "boolean", default = true }, { "with_pieces", "boolean", default = false } } })

  server:route("POST", "/detokenize", function(call, given)
    local model = server:find(given.model).model
    local ids = #given.tokens > 0 and request.ids(model, { ids = given.tokens }) or {}
    call:reply(200, { content = request.tokenizer(model):decode(ids) })
  end, { says = "the text of tokens", fields = {
    { "model", "string" }, { "tokens", "array", required = true } } })

  server:route("POST", "/apply-template", function(call, given)
    local model = server:find(given.model).model
    local ids = conversation.ids(model, {
      messages = messages.read(call:exact().messages), template_args = given.chat_template_kwargs,
    })
    call:reply(200, { prompt = request.tokenizer(model):decode(ids), tokens = #ids })
  end, { says = "the prompt that a conversation is", fields = {
    { "model", "string" }, { "messages", "array", required = true }, { "chat_template_kwargs", "object" } } })
end
