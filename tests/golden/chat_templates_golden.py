#!/usr/bin/env python3
"""Writes tests/golden/chat_templates.json: what transformers makes of 30 conversations by each template of a folder (llama.cpp's
models/templates, which its Python package's source archive holds), as hashes; the conversations are ours, the templates stay outside.
   python3 tests/golden/chat_templates_golden.py FOLDER          needs transformers, jinja2, xxhash
   ... FOLDER --show TEMPLATE NUMBER                             prints one prompt"""
import datetime
import json
import os
import sys

import xxhash
from transformers.utils import chat_template_utils as utils


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def answer(text, **more):
    return {"role": "tool", "content": text, **more}


def function(name, description, properties, **more):
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function("get_weather", "The weather of a city, 'now' or later.", {
    "city": {"type": "string", "description": "A city, such as \"Malmö\" or 東京"},
    "days": {"type": "integer", "default": 3, "minimum": 1},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, required=["city"])
NUMBERS = function("reckon", "Sums <b>numbers</b> & more.", {
    "items": {"type": "array", "items": {"type": "number", "multipleOf": 0.1}, "minItems": 1},
    "keys": {"type": "object", "properties": {"values": {"type": ["string", "null"], "default": None}}, "additionalProperties": False},
    "exact": {"type": "boolean", "default": True},
    "limit": {"type": "number", "default": 1.0, "maximum": 1e20, "examples": [0.30000000000000004, 1234567890123456789, -0.5, 1e-7]}},
    required=["items", "exact"])
NOTHING = function("stop", "Takes nothing.", {})
TOOLS = [WEATHER, NUMBERS]
ARGUMENTS = {"items": [1, 2.0, 0.30000000000000004, 1234567890123456789], "keys": {"values": None}, "exact": True, "limit": 1e20}

# (messages, what else apply_chat_template is given)
CONVERSATIONS = [
    ([user("What is the capital of France?")], {}),
    ([system("Be brief."), user("Hello")], {}),
    ([user("one"), assistant("two"), user("three"), assistant("four"), user("five")], {}),
    ([system("You know much."), user(" spaces \n"), assistant("\n answer \t"), user("\u00a0more\u3000"), assistant("é 漢字 🎉 ß İ ﬁ")], {}),
    ([user("Is it warm?")], {"tools": [WEATHER]}),
    ([system("Use tools."), user("Sum")], {"tools": TOOLS}),
    ([user("Sum"), assistant("", tool_calls=[call("reckon", ARGUMENTS, id="call00001")])], {"tools": TOOLS}),
    ([user("Sum"), assistant(None, tool_calls=[call("reckon", ARGUMENTS, id="call00001")]), answer('{"sum": 3.5}', tool_call_id="call00001", name="reckon")], {"tools": TOOLS}),
    ([user("Sum"), assistant("Let me see.", tool_calls=[call("reckon", ARGUMENTS, id="call00001")]), answer("3.5", tool_call_id="call00001", name="reckon"),
      assistant("It is 3.5."), user("Thanks")], {"tools": TOOLS}),
    ([system("Two at once."), user("Weather in Rome and Oslo?"),
      assistant(None, tool_calls=[call("get_weather", {"city": "Rome"}, id="abcdefgh1"), call("get_weather", {"city": "Oslo", "days": 2}, id="abcdefgh2")]),
      answer('{"t": 21.0}', tool_call_id="abcdefgh1", name="get_weather"), answer('["cold", -3]', tool_call_id="abcdefgh2", name="get_weather")], {"tools": [WEATHER]}),
    ([user("Sum"), assistant("", tool_calls=[call("stop", {}, id="123456789")]), answer("", tool_call_id="123456789", name="stop"), assistant("Done.")], {"tools": [NOTHING]}),
    ([user("Think"), assistant("Answer.", reasoning_content="First this,\nthen that.")], {}),
    ([user("Think"), assistant("Answer.", reasoning_content="Thoughts."), user("Again"), assistant("Second.", reasoning_content="More.")], {}),
    ([user("Think"), assistant("<think>\nThoughts.\n</think>\n\nAnswer."), user("Again")], {}),
    ([user("Think"), assistant("", reasoning_content="I need a tool.", tool_calls=[call("get_weather", {"city": "Malmö"}, id="call00001")]),
      answer("sun", tool_call_id="call00001", name="get_weather"), assistant("Sunny.", reasoning_content="It shines.")], {"tools": [WEATHER]}),
    ([user("Quick")], {"enable_thinking": False}),
    ([user("Slow")], {"enable_thinking": True, "thinking": True}),
    ([system("Think hard."), user("How?")], {"reasoning_effort": "high"}),
    ([assistant("I begin."), user("Do you?")], {}),
    ([system("The assistant begins."), assistant("Welcome!"), user("Hello")], {}),
    ([system("Only this.")], {}),
    ([user("first"), user("second"), assistant("both")], {}),
    ([user("a"), system("in between"), user("b")], {}),
    ([user("It's \"quoted\" \\ and {{ braces }} {% tags %} <b>&amp;</b>\u200b\x7f"), assistant("'x' \"y\"")], {}),
    ([user(""), assistant("")], {}),
    ([user("Hello"), assistant("Hi", name="bot"), user("Who?")], {"custom_instructions": "Short.", "documents": [{"title": "T", "text": "Body"}]}),
    ([system("Ünïcode ÅSE \u01c6 \u0149"), user("ΑΣ straße"), assistant("ok")], {"tools": [NUMBERS], "enable_thinking": False}),
    ([user("x"), assistant("y"), user("z"), assistant(None, tool_calls=[call("get_weather", {"city": "O'Hara \"q\"", "days": -0.0, "unit": None}, id="call00002")]),
      answer("Line 1\nLine 2", tool_call_id="call00002", name="get_weather"), assistant("Fine."), user("And?"), assistant("All.")], {"tools": TOOLS}),
    ([user("list\n- a\n- b\n\n```lua\nprint(1)\n```"), assistant("1. x\n2. y\n")], {"date_string": "2 Jan 2026"}),
    ([system(""), user("empty system"), assistant("seen"), user("end")], {"add_generation_prompt": False}),
]


def arguments_of(number):
    messages, more = CONVERSATIONS[number]
    more = {"add_generation_prompt": messages[-1]["role"] not in ("assistant", "system"), **more}
    return messages, more


def prompt(template, number):
    messages, more = arguments_of(number)
    utils._compile_jinja_template(template).globals["strftime_now"] = lambda form: datetime.datetime(2026, 1, 2, 3, 4, 5).strftime(form)
    chat = utils._normalize_chat_messages(messages)
    rendered, _ = utils.render_jinja_template([chat], chat_template=template, bos_token="<s>", eos_token="</s>", **more)
    return rendered[0]


def main():
    folder = sys.argv[1]
    names = sorted(name for name in os.listdir(folder) if name.endswith(".jinja"))
    if sys.argv[2:3] == ["--show"]:
        sys.stdout.write(prompt(open(os.path.join(folder, sys.argv[3]), encoding="utf-8").read(), int(sys.argv[4]) - 1))
        return
    templates = {}
    for name in names:
        text = open(os.path.join(folder, name), encoding="utf-8", newline="").read()
        prompts = []
        for number in range(len(CONVERSATIONS)):
            try:
                prompts.append(xxhash.xxh3_64_hexdigest(prompt(text, number).encode()))
            except Exception:
                prompts.append("error")
        templates[name] = {"hash": xxhash.xxh3_64_hexdigest(text.encode()), "prompts": prompts}
    conversations = [json.dumps({"messages": m, **more}, ensure_ascii=False) for m, more in map(arguments_of, range(len(CONVERSATIONS)))]
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_templates.json")
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"conversations": conversations, "templates": templates}, f, indent=1, ensure_ascii=False)
        f.write("\n")
    count = sum(len(t["prompts"]) for t in templates.values())
    errors = sum(p == "error" for t in templates.values() for p in t["prompts"])
    print(f"{len(templates)} templates, {count} prompts, {errors} of them errors")


main()
