#!/usr/bin/env python3
"""Writes tests/golden/templates.json: chat templates in the manner of the big model families, rendered by Jinja2 as transformers
sets it up (trim_blocks, lstrip_blocks, tojson without escapes, raise_exception).   python3 tests/golden/make_template_goldens.py"""
import json
import os

from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

THINKING = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role in ["user", "system"] %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

HEADERS = """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

BRACKETS = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- for message in loop_messages | selectattr("role", "ne_", "x") if false %}{% endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles have to alternate') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- endif %}
{%- endfor %}
""".replace("""{%- for message in loop_messages | selectattr("role", "ne_", "x") if false %}{% endfor %}\n""", "")

PIECES = """{# a comment #}
{% macro field(name, value='none', sep=', ') -%}
  <{{ name }}={{ value }}>{{ sep }}
{%- endmacro %}
{% for key, value in {'b': 1, 'a': [1, 2.5, none, true]}.items() %}
  {{ loop.index }}: {{ key }} -> {{ value | tojson }}{% if not loop.last %};{% endif %}

{% endfor %}
{{ field('x') }}{{ field('y', sep='') }}{{ field('z', 3) }}
{{ ['b', 'a', 'c'] | sort | join('-') }} {{ 'Some Text' | lower | replace('t', 'T') }} {{ 7 // 2 }} {{ 7 % 3 }} {{ -3 | abs }} {{ 2 ** 1 if false else 1.5 }}
{{ messages | map(attribute='role') | list | join(',') }} {{ (messages | selectattr('role', 'equalto', 'user') | list) | length }}
{{ 'yes' if messages and not [] else 'no' }} {{ undefined_name is defined }} {{ 'ab' in 'cabd' }} {{ 1 not in [2, 3] }} {{ 'x' ~ 1 ~ none }}
{% set text %}block {{ 1 + 1 }}{% endset %}{{ text | upper }}|{{ '  pad ' | trim }}|{{ "tab\\tquote\\"" }}|{{ [1, 2, 3, 4][1:-1] }}
{% raw %}{{ not rendered }}{% endraw %}
{%- for i in range(3) %} {{ i }}{% else %}none{% endfor %}{% for i in [] %}{{ i }}{% else %} empty{% endfor %}
""".replace(" {{ 2 ** 1 if false else 1.5 }}", "")

TEMPLATES = {"chatml": CHATML, "thinking": THINKING, "headers": HEADERS, "brackets": BRACKETS, "pieces": PIECES}

U, A, S = (lambda role: lambda text: {"role": role, "content": text})("user"), (lambda text: {"role": "assistant", "content": text}), (lambda text: {"role": "system", "content": text})
CONVERSATIONS = [
    [U("Hello")],
    [S("Be brief."), U("Hello\n"), A(" Hi there! "), U("Bye é 漢")],
    [U("Think"), A("<think>\nsome\nthoughts\n</think>\n\nanswer"), U("again"), A("<think>more</think>done")],
    [U("a"), A("b"), U("c"), A("d")],
    [U("call"), {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
]

# What Python's values do: methods before keys of their names, repr, code points, escapes, the loops' leaving.
VALUES = {"t": {"type": "object", "items": {"a": [1, "x'y", True, 0.5]}, "keys": "k"}, "s": "a\u00e9\u20ac\U0001d11eb", "f": 0.30000000000000004, "n": 0.1}
PYTHON = [
    "{{ t }}", "{% for k, v in t.items() %}{{ k }}={{ v }};{% endfor %}", "{{ t['items'] }}", "{{ t.keys() | list }}",
    "{{ s[1] }}{{ s[-2] }}{{ s[1:3] }}{{ s[::-1] }}", "{{ s | first }}{{ s | last }}{{ s | reverse }}{{ s.find('b') }}",
    "{{ '\\x41\\u00e9\\U0001D11E\\101\\u20ac\\u07ff\\u0800\\uffff\\v\\q' }}", "{{ f }} {{ n }} {{ [f] }}", "{{ 'x' in nothing }}{{ 'x' not in nothing }}",
    "{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% else %}none{% endfor %}.",
    "{% for i in [1, 2] %}{% for j in [1, 2, 3] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{% endfor %}|{% endfor %}",
    "{% for i in [1, 2] %}{% set x %}a{% if i == 1 %}{% continue %}{% endif %}{% endset %}[{{ x }}]{% endfor %}",
    "{{ ['a\\n', \"it's\", 'q\"', '\\'\"', '\\\\', '\\x01\\x7f', '\u00e9'] }}", "{{ 'a' ~ [1, {'b': none}] }}", "{{ [] }}{{ [[]] }}",
    "{% set ns = namespace(items=3) %}{{ ns.items }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1 in [1] }}{{ 3 > 2 != 1 }}", "{% set a, b = 1, 'x' %}{{ a }}{{ b }}", "{% set (a, b) = [1, 2] %}{{ a + b }}",
    "{% for (k, (x, y)), z in [(('k', (1, 2)), 3)] %}{{ k }}{{ x }}{{ y }}{{ z }}{% endfor %}",
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise ValueError(message)

    env.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    env.globals["raise_exception"] = raise_exception
    return env


def main():
    env, cases = environment(), []
    for name, template in TEMPLATES.items():
        for messages in CONVERSATIONS:
            for extra in ({}, {"add_generation_prompt": True}, {"add_generation_prompt": True, "enable_thinking": False}):
                variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", **extra}
                try:
                    cases.append({"template": name, "variables": variables, "text": env.from_string(template).render(**variables)})
                except ValueError as error:
                    cases.append({"template": name, "variables": variables, "error": str(error)})
    python = [{"template": t, "text": env.from_string(t).render(**VALUES)} for t in PYTHON]
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates.json")
    with open(out, "w") as f:
        json.dump({"templates": TEMPLATES, "cases": cases, "values": json.dumps(VALUES), "python": python}, f, indent=1, sort_keys=True, ensure_ascii=False)
        f.write("\n")


main()
