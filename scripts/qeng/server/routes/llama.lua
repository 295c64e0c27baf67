-- llama.cpp's routes beside texts, tokens and slots: POST /infill, GET /props, and adapters: GET and POST
-- /lora-adapters (scales), POST /lora-adapters/load and /lora-adapters/unload.

local conversation = require "qeng.server.conversation"
local fields = require "qeng.server.fields"
local infill = require "qeng.server.infill"
local problem = require "qeng.server.problem"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local sampling = require "qeng.server.sampling"

local filled = sampling.with {
  { "input_prefix", "string", required = true },
  { "input_suffix", "string", required = true },
  { "n_predict", "integer", min = 1, default = 128 },
}

-- All adapters as {served, name}, in the order of their numbers.
local function adapters(server)
  local all = {}
  for _, each in ipairs(server.models) do
    for name in pairs(each.adapters) do all[#all + 1] = { each, name } end
  end
  table.sort(all, function(a, b) return a[2] < b[2] end)
  return all
end

return function(server)
  server:route("POST", "/infill", function(call, given)
    local found, opt = sampling.read(server, given)
    opt.ids = infill.must(request.tokenizer(found.model), given.input_prefix, given.input_suffix, "input_prefix")
    local texts, requests = {}, conversation.submit(call, found, opt, 1, given.n_predict)
    if given.stream then call:stream() end
    conversation.follow(call, nil, {
      text = function(_, _, text)
        texts[#texts + 1] = text
        if given.stream then call:send { content = text, stop = false } end
      end,
      over = function(_, r)
        local last = {
          content = given.stream and "" or table.concat(texts), stop = true, tokens_predicted = #r.output,
          tokens_evaluated = r.prompt_tokens, tokens_cached = r.reused, stopped_eos = r.finish == "stop",
          stopped_limit = r.finish == "length",
        }
        if not given.stream then return call:reply(200, last) end
        call:send(last)
        call:close()
      end,
    })
    return requests
  end, { says = "fills in what stands between two texts", fields = filled })

  server:route("GET", "/props", function(call)
    local found = server:find(call.event.query.model)
    local tokenizer = found.model.tokenizer
    call:reply(200, {
      model_alias = found.name, total_slots = found.engine.max_batch, n_ctx = found:context(),
      chat_template = tokenizer and tokenizer:info().chat_template or "",
      modalities = { vision = false, audio = false },
    })
  end, { says = "what a model can do" })

  server:route("GET", "/lora-adapters", function(call)
    local list = {}
    for i, pair in ipairs(adapters(server)) do
      local each = pair[1].adapters[pair[2]]
      list[i] = { id = i - 1, name = pair[2], model = pair[1].name, path = each.path, scale = each.scale }
    end
    call:reply(200, q.json.array(list))
  end, { says = "adapters and their scales" })

  server:route("POST", "/lora-adapters", function(call)
    local all, body = adapters(server), call:json()
    if fields.type_of(body) ~= "array" then problem.raise(400, "expected a list of {id, scale}") end
    local chosen = {}
    for i, entry in ipairs(body) do
      local given = fields.read(entry, {
        { "id", "integer", required = true }, { "scale", "number", required = true, min = -100, max = 100 },
      }, ("[%d]"):format(i - 1))
      chosen[i] = { all[given.id + 1] or problem.raise(404, ("There is no adapter %d."):format(given.id), "id"), given }
    end
    for _, each in ipairs(chosen) do each[1][1]:scale_adapter(each[1][2], each[2].scale) end
    call:reply(200, { success = true })
  end, { says = "scales adapters", body = "array" })

  server:route("POST", "/lora-adapters/load", function(call, given)
    local found = server:find(given.model)
    if not server:has(given.name) then
      local path = server:inside(given.path, "path")
      local _, why = q.try(found.add_adapter, found, given.name, path)
      if why then problem.raise(400, ("'%s' is no adapter: %s"):format(given.path, why.message), "path") end
      return call:reply(200, { success = true })
    end
    problem.raise(400, ("There is a model or an adapter '%s' already."):format(given.name), "name")
  end, { says = "loads an adapter from the server's root", fields = {
    { "name", "string", required = true }, { "path", "string", required = true }, { "model", "string" } } })

  server:route("POST", "/lora-adapters/unload", function(call, given)
    for _, each in ipairs(server.models) do
      if each.adapters[given.name] then
        each:remove_adapter(given.name)
        return call:reply(200, { success = true })
      end
    end
    problem.raise(404, ("There is no adapter '%s'."):format(given.name), "name")
  end, { says = "forgets an adapter", fields = { { "name", "string", required = true } } })
end
