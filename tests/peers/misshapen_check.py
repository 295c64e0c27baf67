"""Requests whose pieces are something else: each piece of a request that the server takes, down to the parts of messages, tools and schemas
(which /openapi.json does not describe), is left out and is replaced by values of every kind. The server refuses or answers, and never fails."""
import copy
import json
import shutil

import qeng
from peers import WORK, check, expect, row
from serving import ask, figures, serving

SCHEMA = {"type": "object", "properties": {"place": {"type": "string", "maxLength": 8}}, "required": ["place"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}
JOINED = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
REQUESTS = [
    ("/v1/chat/completions", {
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                     {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}],
        "max_tokens": 3, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": {"type": "function", "function": {"name": "f"}},
        "stop": ["a"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2, "dry_sequence_breakers": ["a"], "n": 1,
        "id_slot": 1}),
    ("/v1/chat/completions", {
        "messages": [USER], "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "stream": True, "stream_options": {"include_usage": True}, "metadata": {"a": "b"}, "return_token_ids": True}),
    ("/v1/completions", {"prompt": ["a", [1, 2]], "max_tokens": 2, "logprobs": 1, "echo": True, "stop": ["x"], "logit_bias": {"5": 1}, "n": 2}),
    ("/v1/responses", {
        "input": [{"type": "message", **USER}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
                  {"type": "reasoning", "summary": []}],
        "instructions": "x", "max_output_tokens": 3, "tools": [{"type": "function", **FUNCTION}], "tool_choice": {"type": "function", "name": "f"}}),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 3, "stream": True, "text": {"format": JOINED}, "metadata": {"a": "b"}}),
    ("/v1/messages", {
        "model": "tiny", "max_tokens": 3, "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"},
                                                             {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}]}],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "f"}, "stop_sequences": ["a"]}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 3, "messages": [USER], "stream": True,
                      "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": [USER], "tools": [{"name": "f", "input_schema": SCHEMA}]}),
    ("/v1/embeddings", {"input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": 4}),
    ("/v1/rerank", {"query": "a", "documents": ["a", "b"], "top_n": 1, "return_documents": True}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ("/tokenize", {"content": "a", "with_pieces": True}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", {"messages": [USER], "chat_template_kwargs": {}}),
    ("/slots/1?action=save", {"filename": "x"}),
    ("/slots/1?action=restore", {"filename": "x"}),
    ("/lora-adapters", [{"id": 0, "scale": 1}]),
    ("/lora-adapters/load", {"name": "x", "path": "tiny"}),
    ("/lora-adapters/unload", {"name": "x"}),
]
VALUES = [None, True, 1, -1, 1.5, 1e300, 2 ** 53, "", "x", "\0", "tiny", [], {}, [None], [1], ["x"], [[]], [{}], {"a": None}, {"type": "x"},
          {"type": "object"}, {"$ref": "#"}, {"pattern": "("}, {"minItems": 5, "maxItems": 1}]


def places(value, path=()):
    """Where the pieces of a value are, itself among them."""
    yield path
    for name, piece in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(piece, (*path, name))


def changed(value, path):
    """The value without the piece of this place, and with others there."""
    if not path:
        yield from VALUES
        return
    for other in range(-1, len(VALUES)):
        made = copy.deepcopy(value)
        at = made
        for name in path[:-1]:
            at = at[name]
        if other < 0:
            del at[path[-1]]
        else:
            at[path[-1]] = VALUES[other]
        yield made


def asked(address):
    count = 0
    for path, request in REQUESTS:
        for place in places(request):
            for body in changed(request, place):
                status, _, text = ask(address, path, body)
                expect(status < 500 and '"server_error"' not in text, f"{path}: status {status}: {json.dumps(body)}: {text[-300:]}")
                count += 1
    refused = sum(value for name, value in figures(address).items() if name.startswith("qeng_requests_total") and 'status="400"' in name)
    expect(count / 2 < refused < count, f"{refused} of {count} were refused")
    row("misshapen requests", "", f"{count}, {refused:.0f} of them refused")


with check("misshapen requests: none makes the server fail"):
    shutil.copytree(qeng.ROOT / "recipes/tiny", WORK / "misshapen/tiny")
    with serving("--context", "600", "--root", str(WORK / "misshapen")) as address:
        for path, request in REQUESTS[:10]:
            status, _, text = ask(address, path, request)
            expect(status == 200, f"{path}: status {status}: {text}")
        asked(address)
