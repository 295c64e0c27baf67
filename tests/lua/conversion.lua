-- For tests of conversion: a small tokenizer with a template of its own in a folder, random texts, and what a data set
-- holds.
local q = require "qeng"

local dir = os.tmpname()
q.fs.remove(dir)
q.fs.mkdir(dir)
q.train_bpe({ "hello hello world the tool said what it found, and the user asked again" },
  { vocab = 280, specials = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" }, out = dir })
local template_text = [[
{%- if tools %}{{- '<|im_start|>system\nTools:' }}
{%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(found = false, last = messages | length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages | length - 1) - loop.index0 %}
{%- if not ns.found and message.role == 'user' %}{%- set ns.found = true %}{%- set ns.last = index %}
{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content and loop.index0 > ns.last %}
        {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}{%- endif %}
        {{- message.content }}
        {%- if message.tool_calls %}{%- for call in message.tool_calls %}
        {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": '
            + (call.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}{%- endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}]]
q.fs.write(dir .. "/tokenizer_config.json", q.json.encode { chat_template = template_text, eos_token = "<|im_end|>" })
local tokenizer = q.tokenizer(dir)
assert(tokenizer:info().chat_template == template_text)

local conversion = { folder = dir, tokenizer = tokenizer }

local state = 99
function conversion.random(n)
  state = (state * 1103515245 + 12345) % 2147483648
  return math.floor(state / 65536) % n + 1
end
local random, words = conversion.random, { "hello", "world", "é漢", "<|im_end|>", "tab\there", "\"quoted\"",
  "line\nline", "  ", "<think>x</think>", "\\", "{", "😀", "\127", "e\204\129" }
conversion.words = words
function conversion.text()
  local parts = {}
  for i = 1, random(7) - 1 do parts[i] = words[random(#words)] end
  return table.concat(parts, random(2) == 1 and " " or "")
end

function conversion.read_all(path)
  local file, records = q.ndp.open(path), {}
  for i = 1, file:records() do
    local tokens, mask = file:read(i - 1)
    records[i] = { tokens = tokens, mask = mask, src = file:info(i - 1).src }
  end
  return records, file
end

-- The tokenizer of a folder in which change(value, whether of tokenizer.json) has changed both files.
function conversion.changed(name, change)
  q.fs.mkdir(dir .. "/" .. name)
  for _, file in ipairs { "tokenizer.json", "tokenizer_config.json" } do
    local value = q.json.decode(q.fs.read(dir .. "/" .. file), { ordered = true })
    change(value, file == "tokenizer.json")
    q.fs.write(dir .. "/" .. name .. "/" .. file, q.json.encode(value))
  end
  return q.tokenizer(dir .. "/" .. name)
end

return conversion
