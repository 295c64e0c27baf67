#!/usr/bin/env python3
"""Writes tests/golden/records.json: records as the sets of function calls, chats and instructions have them, and what transformers
makes of the same conversations written as messages: the text, and of it what the assistant says in the messages that are trained.
python3 tests/golden/make_record_goldens.py"""
import json
import os

from transformers.utils.chat_template_utils import render_jinja_template

TOOLS = """{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n' }}{%- endif %}
    {{- '<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.reasoning_content %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- elif thinking is defined and not thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}{{- '\\n' }}
    {%- elif message.role == 'user' or not loop.first %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

DEVELOPER = """{%- for message in messages %}{{- '[' + message.role + ']' }}
    {%- if message.role == 'developer' %}{{- 'Instructions: ' + message.content }}
    {%- elif message.role == 'assistant' %}{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}{{- message.content }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}"""

TEMPLATES = {"tools": TOOLS, "developer": DEVELOPER}


def says(role):
    return lambda content, **more: {"role": role, "content": content, **more}


S, U, A, T = says("system"), says("user"), says("assistant"), says("tool")
AREA = [{"name": "area", "description": "Area of a shape, in \u33a1", "parameters": {"type": "object", "properties": {"shape": {"type": "string"}, "sides": {"type": "array", "items": {"type": "number"}}}, "required": ["shape"]}}]
WEATHER = [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def turn(speaker, value, **more):
    return {"from": speaker, "value": value, **more}


# name: the record; the messages that it means; more: tools, the template, the messages that are trained (all of the assistant's)
CASES = {
    "LLaMA-Factory's function calls: observation and function_call, tools as JSON text": (
        {"conversations": [turn("human", "A rectangle of 5 and 3?"), turn("function_call", json.dumps({"name": "area", "arguments": {"shape": "rectangle", "sides": [5, 3]}})),
                           turn("observation", '{"area": 15}'), turn("gpt", "15."), turn("human", "Both?"),
                           turn("function_call", json.dumps([{"name": "area", "arguments": {"shape": "a"}}, {"name": "area", "arguments": {"shape": "b"}}])), turn("observation", "1"), turn("gpt", "1.")],
         "tools": json.dumps(AREA)},
        [U("A rectangle of 5 and 3?"), A("", tool_calls=[call("area", shape="rectangle", sides=[5, 3])]), T('{"area": 15}'), A("15."), U("Both?"),
         A("", tool_calls=[call("area", shape="a"), call("area", shape="b")]), T("1"), A("1.")], {"tools": AREA}),
    "LLaMA-Factory's plain chats, whose tools are the text []": (
        {"conversations": [turn("human", "Define \"photoshop\"."), turn("gpt", "An editor.")], "tools": "[]"}, [U("Define \"photoshop\"."), A("An editor.")], {}),
    "Hermes: roles human, gpt and tool, calls as text, tools as JSON text": (
        {"id": "1", "conversations": [turn("system", "You call functions."), turn("human", "Weather?"), turn("gpt", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'),
                                      turn("tool", '<tool_response>\n{"sun": true}\n</tool_response>'), turn("gpt", "Sunny.")], "tools": json.dumps(WEATHER), "category": "x"},
        [S("You call functions."), U("Weather?"), A('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'), T('<tool_response>\n{"sun": true}\n</tool_response>'), A("Sunny.")],
        {"tools": WEATHER}),
    "ToolBench: roles system, user, assistant and function": (
        {"id": "Step 3", "conversations": [turn("system", "You are AutoGPT."), turn("user", "\nBegin!\n"), turn("assistant", "\nThought: \nAction: f\nAction Input: {}"), turn("function", '{"error": ""}'), turn("assistant", "Done.")]},
        [S("You are AutoGPT."), U("\nBegin!\n"), A("\nThought: \nAction: f\nAction Input: {}"), T('{"error": ""}'), A("Done.")], {}),
    "OpenAI's weights": (
        {"messages": [S("Marv is sarcastic."), U("Capital of France?"), A("Paris", weight=0), U("More sarcastic?"), A("Paris, as if everyone did not know.", weight=1)]},
        [S("Marv is sarcastic."), U("Capital of France?"), A("Paris"), U("More sarcastic?"), A("Paris, as if everyone did not know.")], {"trained": [4]}),
    "OpenAI's calls: arguments as JSON text, empty ones, null content": (
        {"messages": [U("Weather?"), {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"z": 1, "city": "Oslo"}'}},
                                                                                          {"id": "c2", "type": "function", "function": {"name": "now", "arguments": ""}}]},
                      {"role": "tool", "tool_call_id": "c1", "content": "sun"}, A("Sunny.")], "tools": WEATHER, "parallel_tool_calls": False},
        [U("Weather?"), A("", tool_calls=[call("weather", z=1, city="Oslo"), call("now")]), T("sun"), A("Sunny.")], {"tools": WEATHER}),
    "OpenAI's old form: functions, function_call and the role function": (
        {"messages": [U("Weather?"), {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"city": "Oslo"}'}}, {"role": "function", "name": "weather", "content": "sun"}, A("Sunny.")],
         "functions": [WEATHER[0]["function"]]},
        [U("Weather?"), A("", tool_calls=[call("weather", city="Oslo")]), T("sun"), A("Sunny.")], {"tools": WEATHER}),
    "axolotl's train, beside roles in capitals": (
        {"conversations": [turn("system", "Short.", train=False), turn("human", "Hello", train=False), turn("Assistant", "Hello", train=True), turn("Human", "And?"), turn("assistant", "No.", train=False)]},
        [S("Short."), U("Hello"), A("Hello"), U("And?"), A("No.")], {"trained": [2]}),
    "ms-swift: tool_call after what the assistant says, tool_response, loss": (
        {"messages": [U("Weather?"), A("A look.", loss=True), {"role": "tool_call", "content": '{"name": "weather", "arguments": {"city": "Oslo"}}'}, {"role": "tool_call", "content": '{"name": "now", "arguments": {}}'},
                      {"role": "tool_response", "content": "sun"}, A("Sunny.", loss=False)], "tools": [json.dumps(WEATHER[0])]},
        [U("Weather?"), A("A look.", tool_calls=[call("weather", city="Oslo"), call("now")]), T("sun"), A("Sunny.")], {"tools": WEATHER, "trained": [1]}),
    "tools whose parameters are JSON text, columns that are null": (
        {"messages": [dict(U("Hi"), tool_calls=None, name=None, weight=None), dict(A("Ho"), tool_calls=None, train=None)], "conversations": None, "system": None,
         "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": json.dumps(WEATHER[0]["function"]["parameters"])}}]},
        [U("Hi"), A("Ho")], {"tools": WEATHER}),
    "a system message beside the messages": ({"system": "Be brief.", "messages": [U("Hi"), A("Ho")]}, [S("Be brief."), U("Hi"), A("Ho")], {}),
    "a system prompt that the messages begin with too": ({"system_prompt": "Be brief.", "conversations": [turn("system", "Be brief."), turn("user", "Hi"), turn("bot", "Ho")]}, [S("Be brief."), U("Hi"), A("Ho")], {}),
    "Gemma's role": ({"messages": [U("Hi"), {"role": "model", "content": "Ho"}]}, [U("Hi"), A("Ho")], {}),
    "messages as JSON text, as CSV has them": ({"messages": json.dumps([U("Hi"), A("Ho")])}, [U("Hi"), A("Ho")], {}),
    "Alpaca with history, whose answers are trained too": (
        {"instruction": "Three?", "input": "", "output": "3", "system": "Count.", "history": [["One?", "1"], ["Two?", "2"]]}, [S("Count."), U("One?"), A("1"), U("Two?"), A("2"), U("Three?"), A("3")], {}),
    "TRL's prompt and completion: only the completion is trained": (
        {"prompt": [S("Count."), U("One?"), A("1"), U("Two?")], "completion": [A("2")], "chat_template_kwargs": {"thinking": False}, "tools": WEATHER},
        [S("Count."), U("One?"), A("1"), U("Two?"), A("2")], {"trained": [4], "tools": WEATHER, "options": {"thinking": False}}),
    "reasoning by its other names": (
        {"messages": [U("Hi"), A("Ho", thinking="why"), U("Hi"), A("Ha", reasoning="so")]}, [U("Hi"), A("Ho", reasoning_content="why"), U("Hi"), A("Ha", reasoning_content="so")], {}),
    "a developer's message where the template has no such role": ({"messages": [{"role": "developer", "content": "Be brief."}, U("Hi"), A("Ho")]}, [S("Be brief."), U("Hi"), A("Ho")], {}),
    "a developer's message where the template has this role": (
        {"messages": [{"role": "developer", "content": "Be brief."}, U("Hi"), A("Ho")]}, [{"role": "developer", "content": "Be brief."}, U("Hi"), A("Ho")], {"template": "developer"}),
}


def main():
    cases = []
    for name, (record, messages, more) in CASES.items():
        template = more.get("template", "tools")
        texts, spans = render_jinja_template([messages], tools=more.get("tools"), chat_template=TEMPLATES[template], return_assistant_tokens_mask=True, **more.get("options", {}))
        by_assistant = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        assert len(by_assistant) == len(spans[0]), name
        trained = more.get("trained", by_assistant)
        cases.append({"name": name, "template": template, "record": json.dumps(record, ensure_ascii=False), "text": texts[0],
                      "trained": [texts[0][a:b] for i, (a, b) in zip(by_assistant, spans[0]) if i in trained],
                      "last": [texts[0][a:b] for i, (a, b) in zip(by_assistant, spans[0]) if i in trained and i == by_assistant[-1]]})
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "records.json")
    with open(out, "w") as file:
        json.dump({"templates": TEMPLATES, "cases": cases}, file, ensure_ascii=False, indent=1)
        file.write("\n")


main()
