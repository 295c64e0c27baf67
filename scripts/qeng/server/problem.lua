-- Errors as OpenAI's clients read them: an HTTP status, and {"error": {"message", "type", "param", "code"}}.

local q = require "qeng.core"

local problem = {}

local meta = { __tostring = function(self) return self.message end }

-- Raises an error that the caller of a route is told. param: the field at fault, as "messages[2].role"; code: a word
-- for programs, as "model_not_found"; headers: of the answer.
function problem.raise(status, message, param, code, headers)
  error(setmetatable({ code = "http", status = status, message = message, param = param, word = code,
    headers = headers }, meta), 0)
end

-- What is said of a file, with the name that the client gave it in the place of its path.
function problem.named(text, path, name)
  return (text:gsub(path:gsub("%W", "%%%0"), (name:gsub("%%", "%%%%"))))
end

local function kind(status)
  if status == 429 then return "rate_limit_error" end
  return status < 500 and "invalid_request_error" or "server_error"
end

local statuses = { value = 400, template = 400, peer = 503 }

-- The status of an error that a route raised, what its body says, and for the log what it does not say. An error of
-- code "value" is about what was sent, one of a chat template about the messages that it was given, and one of peers
-- about machines that are gone: another try may find them.
function problem.of(err)
  local ours = type(err) == "table"
  local status = ours and (err.status or statuses[err.code]) or 500
  local message = status ~= 500 and err.message or "the server failed at this request; its log says how"
  local body = { message = message, type = kind(status), param = q.json.null, code = q.json.null }
  if ours then body.param, body.code = err.param or body.param, err.word or body.code end
  local failure = status == 500 or ours and err.code == "peer"
  return status, { error = body }, failure and tostring(ours and err.message or err) or nil
end

return problem
