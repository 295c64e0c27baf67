"""recipes/serve.lua under the clients that people use: the openai and anthropic packages, against the built-in model. Texts and log
probabilities are the engine's own (server.lua) to the bit, alone and among 64 clients, streamed and whole."""
import asyncio
import json
import time
import urllib.request

import anthropic
import openai
import pydantic
from peers import check, expect, row
from serving import KEY, figures, own, serving


def say(text):
    return [{"role": "user", "content": text}]


QUESTION = say("Where is the hat?")
WORDS = ["hat", "brush", "ladder", "kettle", "dog", "river", "jar", "lamp"]
DRAWN = [{"messages": say(f"Where is the {WORDS[i % 8]}?"), "seed": i, "temperature": 1.5, "top_p": 0.95, "max_tokens": 8 + i % 24, "logprobs": 1}
         for i in range(64)]


def as_chat(drawn):
    return {**drawn, "model": "tiny", "logprobs": True, "top_logprobs": 1}


def logprobs_of(choice):
    return [entry.logprob for entry in choice.logprobs.content]


def same(choice, expected, what):
    expect(choice.message.content == expected["text"], f"{what}: {choice.message.content!r}, the engine says {expected['text']!r}")
    expect(logprobs_of(choice) == expected["logprobs"], f"{what}: log probabilities differ from the engine's")


def alone(client, expected):
    for i in range(0, 64, 8):
        same(client.chat.completions.create(**as_chat(DRAWN[i])).choices[0], expected[i], f"request {i}")
        text, measured = [], []
        stream = client.chat.completions.create(**as_chat(DRAWN[i]), stream=True, stream_options={"include_usage": True})
        for chunk in stream:
            for choice in chunk.choices:
                text.append(choice.delta.content or "")
                measured += logprobs_of(choice) if choice.logprobs else []
            usage = chunk.usage
        expect("".join(text) == expected[i]["text"] and measured == expected[i]["logprobs"], f"request {i}: streamed and whole differ")
        expect(usage.completion_tokens == expected[i]["tokens"], f"request {i}: usage has {usage.completion_tokens} tokens")


async def among_others(url, expected):
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**as_chat(drawn)) for drawn in DRAWN))
    for i, answer in enumerate(answers):
        same(answer.choices[0], expected[i], f"request {i} of 64 at once")


def completions(client):
    prompt = own([{"prompt": "The hat is", "temperature": 0, "max_tokens": 8}])[0]["text"]
    made = client.completions.create(model="tiny", prompt="The hat is", temperature=0, max_tokens=8, echo=True, logprobs=2)
    choice = made.choices[0]
    expect(choice.text == "The hat is" + prompt, f"echo: {choice.text!r}")
    expect("".join(choice.logprobs.tokens) == choice.text, "the tokens of echo do not make its text")
    expect(choice.logprobs.token_logprobs[0] is None and choice.logprobs.token_logprobs[1] < 0, "log probabilities of the prompt")
    streamed = client.completions.create(model="tiny", prompt="The hat is", temperature=0, max_tokens=8, stream=True)
    expect("".join(chunk.choices[0].text for chunk in streamed) == prompt, "streamed and whole differ")
    scored = client.completions.create(model="tiny", prompt=["The hat is", "The dog"], max_tokens=0, echo=True, logprobs=0)
    expect(len(scored.choices) == 2 and scored.usage.completion_tokens == 0, "prompts that are only scored")


def measured(client, address):
    """The server's times lie within those that the client measures, and its counts are the client's."""
    before, firsts, wholes, tokens, prompts, reused = figures(address), 0.0, 0.0, 0, 0, 0
    for i in range(16):
        begin, first = time.perf_counter(), None
        for chunk in client.chat.completions.create(**as_chat(DRAWN[i]), stream=True, stream_options={"include_usage": True}):
            if first is None and chunk.choices and (chunk.choices[0].delta.content or chunk.choices[0].finish_reason):
                first = time.perf_counter() - begin
        firsts, wholes = firsts + first, wholes + time.perf_counter() - begin
        tokens, prompts = tokens + chunk.usage.completion_tokens, prompts + chunk.usage.prompt_tokens
        reused += chunk.usage.prompt_tokens_details.cached_tokens
    after = figures(address)

    def more(name):
        return after.get(name, 0) - before.get(name, 0)

    path = '{path="/v1/chat/completions"}'
    expect(more("qeng_time_to_first_token_seconds_count") == 16 and more("qeng_request_seconds_count" + path) == 16, "requests")
    expect(more("qeng_inter_token_seconds_count") == tokens - 16, f"{tokens} tokens, {more('qeng_inter_token_seconds_count')} times between them")
    kinds = [more(f'qeng_tokens_total{{kind="{kind}"}}') for kind in ("prompt", "cached", "output")]
    expect(kinds == [prompts - reused, reused, tokens], f"tokens by kind {kinds}, the client has {[prompts - reused, reused, tokens]}")
    first, whole, between = (more(f"qeng_{name}") for name in ("time_to_first_token_seconds_sum", "request_seconds_sum" + path, "inter_token_seconds_sum"))
    expect(0 < more("qeng_queue_seconds_sum") < first < firsts, f"first tokens {first:.4f} s, for the client {firsts:.4f}")
    expect(first + between < whole < wholes, f"whole {whole:.4f} s, for the client {wholes:.4f}; {first:.4f} and {between:.4f} in it")


class Place(pydantic.BaseModel):
    thing: str = pydantic.Field(max_length=8)
    count: int = pydantic.Field(ge=1, le=9)


def structured(client):
    parsed = client.chat.completions.parse(model="tiny", messages=QUESTION, response_format=Place, max_tokens=100, temperature=0)
    expect(isinstance(parsed.choices[0].message.parsed, Place), f"{parsed.choices[0].message.content!r} is not the schema's")
    free = client.chat.completions.create(model="tiny", messages=QUESTION, response_format={"type": "json_object"}, max_tokens=200,
                                          temperature=0, stop=["}"])
    expect(free.choices[0].message.content.startswith("{"), f"{free.choices[0].message.content!r} is no object")


WEATHER = {"type": "object", "properties": {"place": {"type": "string", "maxLength": 8}}, "required": ["place"], "additionalProperties": False}


def tools(client, other):
    """A required call in each API, streamed and whole; its result goes back."""
    function = {"name": "get_weather", "description": "The weather of a place.", "parameters": WEATHER}
    asked = {"model": "tiny", "messages": QUESTION, "max_tokens": 200, "seed": 1, "tools": [{"type": "function", "function": function}],
             "tool_choice": "required"}
    whole = client.chat.completions.create(**asked).choices[0]
    made = whole.message.tool_calls[0]
    expect(whole.finish_reason == "tool_calls" and set(json.loads(made.function.arguments)) == {"place"}, f"called with {made.function.arguments}")
    with client.chat.completions.stream(**asked) as stream:
        last = stream.get_final_completion().choices[0].message.tool_calls[0]
    expect(last.function.arguments == made.function.arguments and last.function.name == "get_weather", "streamed and whole differ")
    back = QUESTION + [whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": made.id, "content": "rain"}]
    expect(client.chat.completions.create(model="tiny", messages=back, tools=asked["tools"], max_tokens=4).choices, "a result is not taken")
    block = other.messages.create(model="tiny", max_tokens=200, messages=QUESTION, tool_choice={"type": "any"},
                                  tools=[{"name": "get_weather", "input_schema": WEATHER}]).content[0]
    expect(block.type == "tool_use" and set(block.input) == {"place"}, f"called with {block}")
    with other.messages.stream(model="tiny", max_tokens=200, messages=QUESTION, tool_choice={"type": "any"},
                               tools=[{"name": "get_weather", "input_schema": WEATHER}]) as stream:
        expect(set(stream.get_final_message().content[0].input) == {"place"}, "streamed input")
    back = QUESTION + [{"role": "assistant", "content": [block.model_dump()]},
                       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "rain"}]}]
    expect(other.messages.create(model="tiny", max_tokens=4, messages=back).content, "a result is not taken")
    item = client.responses.create(model="tiny", input="Where?", tool_choice="required", max_output_tokens=200,
                                   tools=[{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}]).output[0]
    expect(item.type == "function_call" and set(json.loads(item.arguments)) == {"place"}, f"called with {item}")
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**{**asked, "tools": [{"type": "web_search"}]}), "tools[0]")


def responses(client):
    first = client.responses.create(model="tiny", input="Where is the hat?", temperature=0, max_output_tokens=20)
    expect(first.output_text == own([{"messages": QUESTION, "temperature": 0, "max_tokens": 20}])[0]["text"], f"{first.output_text!r}")
    said = QUESTION + [{"role": "assistant", "content": first.output_text}] + say("And the dog?")
    expected = own([{"messages": said, "temperature": 0, "max_tokens": 20}])[0]["text"]
    with client.responses.stream(model="tiny", input="And the dog?", previous_response_id=first.id, temperature=0, max_output_tokens=20) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        last = stream.get_final_response()
    expect(text == expected == last.output_text, f"goes on with {text!r}, the engine with {expected!r}")
    expect(client.responses.retrieve(first.id).id == first.id, "is not kept")
    client.responses.delete(first.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id))


def refused(kind, call, param=None):
    try:
        call()
    except kind as error:
        found = getattr(error, "param", None)
        expect(param is None or found == param, f"the error names {found}, not {param}: {error}")
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors(client, url):
    create = client.chat.completions.create
    refused(openai.BadRequestError, lambda: create(model="tiny", messages=QUESTION, temperature=5), "temperature")
    refused(openai.BadRequestError, lambda: create(model="tiny", messages=[]), "messages")
    refused(openai.BadRequestError, lambda: create(model="tiny", messages=QUESTION, extra_body={"tempereture": 1}), "tempereture")
    refused(openai.NotFoundError, lambda: create(model="gpt-4", messages=QUESTION))
    refused(openai.AuthenticationError, lambda: openai.OpenAI(base_url=url, api_key="wrong").models.list())
    expect(urllib.request.urlopen(url.replace("/v1", "/health")).status == 200, "/health asks for a key")


def embeddings(client):
    coded = client.embeddings.create(model="tiny", input=["The hat", "The dog"])  # the package asks for base64
    plain = client.embeddings.create(model="tiny", input="The dog", encoding_format="float")
    off = max(abs(a - b) for a, b in zip(coded.data[1].embedding, plain.data[0].embedding))
    expect(off < 1e-7 and abs(sum(x * x for x in plain.data[0].embedding) - 1) < 1e-6, f"base64 and numbers are {off} apart")

    short = client.embeddings.create(model="tiny", input="The dog", encoding_format="float", dimensions=16).data[0].embedding
    length = sum(x * x for x in plain.data[0].embedding[:16]) ** 0.5
    off = max(abs(a - b / length) for a, b in zip(short, plain.data[0].embedding[:16], strict=True))
    expect(off < 1e-6, f"the first 16 numbers, of length 1, are {off} apart")

def theirs(client):
    expected = own([{"messages": [{"role": "system", "content": "Be brief."}] + QUESTION, "temperature": 0, "max_tokens": 20}])[0]
    asked = {"model": "tiny", "max_tokens": 20, "system": "Be brief.", "messages": QUESTION, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    expect(whole.content[0].text == expected["text"] and whole.usage.output_tokens == expected["tokens"], f"{whole.content[0].text!r}")
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    expect(text == expected["text"] == last.content[0].text and last.stop_reason == whole.stop_reason, "streamed and whole differ")
    counted = client.messages.count_tokens(model="tiny", system="Be brief.", messages=QUESTION)
    expect(counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, "tokens are counted otherwise")
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    bound = client.messages.create(**asked, output_config={"format": {"type": "json_schema", "schema": schema}})
    expect(1 <= json.loads(bound.content[0].text)["n"] <= 9, f"{bound.content[0].text!r} is not the schema's")
    cut = client.messages.create(**{**asked, "stop_sequences": [expected["text"][3:6]]})
    expect(cut.stop_reason == "stop_sequence" and cut.stop_sequence == expected["text"][3:6], f"stopped by {cut.stop_reason}")
    refused(anthropic.BadRequestError, lambda: client.messages.create(**{**asked, "extra_body": {"temperature": 2}}))
    refused(anthropic.NotFoundError, lambda: client.messages.create(**{**asked, "model": "claude"}))


async def their_async(url):
    async with anthropic.AsyncAnthropic(base_url=url, api_key=KEY) as client:
        asked = {"model": "tiny", "max_tokens": 12, "messages": QUESTION, "extra_body": {"temperature": 0}}
        answers = await asyncio.gather(*(client.messages.create(**asked) for _ in range(8)))
    expect(len({answer.content[0].text for answer in answers}) == 1, "eight at once differ")


row("client", "what", "checks")
row("---", "---", "---")
expected = own(DRAWN)
with serving() as address:
    v1 = address + "/v1"
    client, other = openai.OpenAI(base_url=v1, api_key=KEY, max_retries=0), anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0)
    with check("openai: chat alone, whole and streamed, is the engine's to the bit"):
        alone(client, expected)
    with check("openai: 64 clients at once get what each gets alone"):
        asyncio.run(among_others(v1, expected))
    with check("openai: what /metrics says lies within what the client measures"):
        measured(client, address)
    with check("openai: completions"):
        completions(client)
    with check("openai: structured output"):
        structured(client)
    with check("openai, anthropic: tools"):
        tools(client, other)
    with check("openai: responses"):
        responses(client)
    with check("openai: errors"):
        errors(client, v1)
    with check("openai: embeddings and models"):
        embeddings(client)
        expect([model.id for model in client.models.list()] == ["tiny"], "models")
    with check("anthropic: messages"):
        theirs(other)
    with check("anthropic: eight at once"):
        asyncio.run(their_async(address))
row("openai, anthropic", f"{openai.__version__}, {anthropic.__version__}", 11)
