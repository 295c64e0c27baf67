#!/usr/bin/env python3
"""Writes tests/golden/templates.json: chat templates in the manner of the big model families, rendered by Jinja2 as transformers
sets it up (trim_blocks, lstrip_blocks, tojson without escapes, raise_exception).   python3 tests/golden/make_template_goldens.py"""
import json
import os

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
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
VALUES = {"t": {"type": "object", "items": {"a": [1, "x'y", True, 0.5]}, "keys": "k"}, "s": "a\u00e9\u20ac\U0001d11eb", "f": 0.30000000000000004, "n": 0.1, "one": 1.0,
          "long": 1234567890123456789, "longer": 10 ** 30, "neg": -2.5, "big": 1e16, "small": 1e-7, "e22": 1e22, "zero": -0.0, "yes": True, "void": None,
          "calls": [{"name": "b", "n": 2}, {"name": "A", "n": 10}, {"name": "c", "n": 1.5}], "json": "{\"b\": [1, 2.0]}"}
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
    # numbers: integers and floats apart and exact
    "{{ one }} {{ long }} {{ longer }} {{ neg }} {{ big }} {{ small }} {{ e22 }} {{ zero }} {{ [one, long, 2.50] }}",
    "{{ t | tojson }} {{ [one, long, longer, big, zero, yes, void] | tojson }} {{ calls | tojson(indent=2) }} {{ calls | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ 7 / 2 }} {{ 6 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7.0 // 2 }} {{ -7 % 3 }} {{ 7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }}",
    "{{ 1 + 2.0 }} {{ 3 * 1.0 }} {{ yes + 1 }} {{ 1 == 1.0 }} {{ yes == 1 }} {{ long == 1234567890123456768.0 }} {{ longer > long }} {{ 1_000 }} {{ 0x1F }} {{ 1.5e3 }} {{ 10 - -3 }}",
    "{{ 1 is integer }}{{ one is integer }}{{ one is float }}{{ n is float }}{{ yes is integer }}{{ yes is number }}{{ 'a' is number }}{{ long is integer }}",
    "{{ '12' | int }} {{ '12.7' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ '0x1f' | int(0, 16) }} {{ void | int }} {{ yes | int }}",
    "{{ '1.5' | float }} {{ 2 | float }} {{ 'x' | float }} {{ 'x' | float(2) }} {{ '1e3' | float }} {{ ' 12_3 ' | int }}",
    "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ -2.5 | round | int }} {{ -3 | abs }} {{ neg | abs }}",
    # texts
    "{{ 'ÀÉß' | lower }} {{ 'straße' | upper }} {{ 'élan vital-x (y)' | title }} {{ 'éCOLE' | capitalize }} {{ 'ǆ'.upper() }} {{ 'ΑΣ'.lower()[0] }} {{ \"it's\".title() }}",
    "{{ '\u00a0 x\u3000' | trim }}|{{ ' a b '.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a  b c '.split(none, 1) }}{{ 'aXbXc'.partition('X') }}{{ 'aXbXc'.rpartition('X') }}{{ 'a\nb\r\nc\u2028d'.splitlines() }}",
    "{{ 'abcabc'.find('c') }}{{ 'abcabc'.rfind('c') }}{{ 'abc'.count('') }}{{ 'abcabc'.count('bc') }}{{ 'abc'.replace('', '-') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'x'.zfill(3) }}{{ '-5'.zfill(4) }}{{ 'é'.center(6, '*') }}{{ 'ab'.ljust(4, '.') }}{{ 'ab'.rjust(4) }}",
    "{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('bc') }}{{ '12'.isdigit() }}{{ 'é'.isalpha() }}{{ ' '.isspace() }}{{ 'Ab'.isupper() }}{{ 'é1'.isalnum() }}",
    "{{ '{} and {name:>6}|{0:.2f}|{1!r}'.format(1.5, 'q', name='x') if false else '{0} {1} {name}'.format(1, 'b', name=2.0) }}{{ '{:.2f}|{:>6}|{:<4}|{:^5}|{:05d}|{:+d}|{:,}|{!r}|{{}}'.format(1.005, 'a', 'b', 'c', 42, 7, 1234567, 'q') }}",
    "{{ '%s is %d, %.2f, %5s|%-5s|%05d %%' % ('a', 3, 2.5, 'b', 'c', 42) }}{{ '%s' % 'x' }}{{ '%r' % 'x' }}{{ '%(a)s' % {'a': 1} }}{{ '%s-%s' | format('a', 1.0) }}",
    "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(1, blank=true) }}|{{ 'ab' * 3 }}{{ 3 * 'x' }}{{ [1] * 2 }}{{ 'b' in 'abc' }}{{ 'x' 'y' }}",
    "{{ ['\u200b', '\u00ad', '\x85', '\U000e0001', '\u00a0', '\u0378'] }} {{ {'a': (1,), 'b': (1, 2), 3: ()} }} {{ {1: 'x', none: true} }} {{ (1, 'a') }} {{ ((1,),) }}",
    # collections
    "{{ {'b': 1, 'A': 2, 'c': 0} | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(true) }}{{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }}",
    "{{ [3, 1.5, 2] | min }}{{ ['b', 'A', 'c'] | max }}{{ calls | max(attribute='n') }}{{ [] | min }}{{ [1, 2.5] | sum }}{{ calls | sum(attribute='n') }}{{ calls | sum(attribute='n', start=10) }}",
    "{{ ['b', 'A', 'c'] | sort }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ calls | sort(attribute='name') | map(attribute='name') | join(',') }}{{ [2, 1, 3] | sort(reverse=true) }}{{ ['a', 'A', 'b'] | unique | list }}",
    "{{ calls | map(attribute='x', default='none') | list }}{{ ['a', 'b'] | map('upper') | list }}{{ ['a b'] | map('replace', ' ', '_') | first }}{{ calls | selectattr('n', 'gt', 1.7) | map(attribute='n') | list }}{{ calls | rejectattr('n', 'eq', 2) | list | length }}{{ [0, 1, '', 'a'] | select | list }}{{ [1, 2, 3] | reject('odd') | list }}",
    "{{ calls | first }}{{ [] | first is defined }}{{ 'abc' | list }}{{ {'a': 1} | list }}{{ [1, 2] | reverse | list }}{{ {'a': 1} | items | list }}{{ t.keys() }}{{ t.values() | list | length }}{{ dict(a=1, b=2) }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 2) }}",
    "{{ range(3) }}{{ range(5, 0, -2) | list }}{{ range(3)[1] }}{{ [1, 2, 3][::-1] }}{{ 'abc'[::2] }}{{ (1, 2, 3)[1:] }}{{ [1, 2].index(2) }}{{ (1, 1).count(1) }}{{ [1, 2][5] is defined }}{{ 'abc'[-1] }}{{ calls[0]['name'] }}{{ calls.0.name }}",
    "{{ void.x is defined }}{{ 5 .x is defined }}{{ void | default('d') }}{{ void | default('d', true) }}{{ gone | default }}{{ gone | default([]) }}{{ gone | length }}{{ gone | list }}{{ gone ~ 'x' }}{{ gone == gone2 }}{{ gone is none }}",
    "{% set g = calls | selectattr('n') %}{% for c in g %}{{ c.n }}{% endfor %}{% for c in g %}{{ c.n }}{% else %}gone{% endfor %}{{ 'true' if g else 'false' }}",
    "{{ [1, [2, {'a': 3.0}]] == [1.0, [2, {'a': 3}]] }}{{ (1, 2) == [1, 2] }}{{ [1, 2] < [1, 3] }}{{ 'a' < 'b' }}{{ none == false }}{{ {} == {} }}{{ 3 in {'a': 1} }}{{ 'a' in {'a': 1} }}{{ 2.0 in [1, 2] }}",
    # statements
    "{% macro m(a, b='x') %}{{ a }}{{ b }}{{ caller(1) if caller is defined else '' }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, z=4) }}{% call(n) m('c') %}<{{ n }}>{% endcall %}",
    "{% filter upper | replace('A', 'b') %}aé{% endfilter %}{% set x | trim | upper %}  ab {% endset %}{{ x }}{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% for x in [1, 2, 3] if x != 2 %}{{ loop.index }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }};{% endfor %}",
    "{% for x in [[1, [2]], 3] recursive %}{{ loop.depth }}{{ loop(x) if x is sequence else x }}{% endfor %}|{% for a, b in {'k': 1}.items() %}{{ a }}{{ b }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% set ns = namespace(a=1) %}{% set ns.b = 2 %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% set ns.c, d = i, i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.x is defined }}{{ d is defined }}",
    "{% if 1 %}\n a{% endif %}\n  {%- if 1 +%}\n b{% endif %}\n   {%+ if 1 %}c{% endif %}\n  {# x #}\n{% raw %}{{ x }}{% endraw %}\n{{- 1 -}}  \n x",
    "{% if a or yes %}y{% endif %}{{ 'a' if false }}{{ 1 if 2 else 3 if 4 else 5 }}{{ not yes and no }}{{ '1' + 2 ~ 3 }}{{ 2 * 3 ~ 4 }}{{ - 5 | abs }}{{ yes is true and void is none }}{{ 4 is divisibleby 2 }}{{ 'a' is in ['a'] }}{{ 3 is not eq 3 }}",
    "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}{{ '<b>' | safe + '<i>' }}{{ ('<b>' | safe) ~ '<i>' }}",
]

# What errs: a change of a value, reckoning with what is no number, the attribute of an undefined value, ...
WRONG = [
    "{% set l = [1] %}{% set _ = l.append(2) %}", "{{ {'a': 1}.update({'b': 2}) }}", "{{ t.pop('type') }}", "{{ 'a' + 1 }}", "{{ 1 + void }}", "{{ gone.x }}", "{{ gone + 1 }}", "{{ gone() }}",
    "{{ 'a' < 1 }}", "{{ [1] + (2,) }}", "{{ 1 in 5 }}", "{{ 1 in 'a' }}", "{{ gone | tojson }}", "{% for x in 3 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% set a, b = [1] %}",
    "{{ 1 / 0 }}", "{{ 5 % 0 }}", "{{ [1] | nosuch }}", "{{ 1 is nosuch }}", "{% nosuch %}", "{{ calls | selectattr('n') | length }}", "{{ [3, 'a'] | sort }}", "{{ 'a'.nosuch() }}", "{{ '%d' % 'x' }}",
    "{{ 'x'.join([1]) }}", "{{ raise_exception('stop') }}", "{% set ns = namespace(_a=1) %}", "{{ {[1]: 2} }}", "{{ range(1000000) }}", "{{ 'abc'.split('') }}", "{{ (1, 2 }}", "{{ 'x' | replace('a') }}", "{{ m(1) }}",
    "{{ [1] | join(',', nosuch=1) }}", "{{ void.strip() }}", "{{ 'a' * 'b' }}", "{{ -'a' }}", "{{ none | length }}", "{{ 'a' | items | list }}", "{% if %}{% endif %}", "{% for x in [1] %}", "{{ 1 if }}", "{% set 1 = 2 %}", "{% if 1 if 2 else 3 %}{% endif %}",
]


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise ValueError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(Extension):  # transformers' marks what is trained; the text is that of its body
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

        def said(self, caller):
            return caller()

    class Space(jinja2.utils.Namespace):
        def __init__(self, **names):
            if any(name.startswith("_") for name in names):
                raise ValueError("a name with an underscore")
            super().__init__(**names)

    env.add_extension(Generation)
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, namespace=Space)
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
    for t in WRONG:
        try:
            raise SystemExit(f"{t} renders {env.from_string(t).render(**VALUES)!r}")
        except Exception:
            python.append({"template": t, "error": True})
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates.json")
    with open(out, "w") as f:
        json.dump({"templates": TEMPLATES, "cases": cases, "values": json.dumps(VALUES), "python": python}, f, indent=1, sort_keys=True, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
