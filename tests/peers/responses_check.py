"""/v1/responses under the Open Responses specification: whole answers and every event of streams are what the models of the package
openresponses-types say, with no field missing, none of another type and none beyond them. The cases are those of the specification's
own compliance tests, and what its text demands of streams, items and errors."""
import importlib.metadata
import json
import shutil

import qeng
from openresponses_types import types
from peers import WORK, check, expect, read_json, row
from serving import ask, serving

# What OpenAI's API has beyond the specification's models; `status` its text asks of every item, and its model of reasoning forgets.
BEYOND = {"response.user", "response.function_call_arguments.done.name", "reasoning.status"}
# OpenAI's names of these events, which its clients wait for; of the specification only some versions have them.
RENAMED = {f"response.reasoning_text.{end}": f"response.reasoning.{end}" for end in ("delta", "done")}
EVENTS = {next(iter(model.model_fields["type"].annotation)).value: model
          for name, model in vars(types).items() if name.endswith("StreamingEvent")}

PARAMETERS = {"type": "object", "properties": {"location": {"type": "string", "maxLength": 8}}, "required": ["location"],
              "additionalProperties": False}
TOOL = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def message(role, content):
    return {"type": "message", "role": role, "content": content}


def beyond(sent, kept, path=""):
    """Names of what was sent and is no field of the models."""
    if isinstance(sent, list):
        return {name for one, other in zip(sent, kept) for name in beyond(one, other, path)}
    if not isinstance(sent, dict):
        return set()
    path = next((sent[name] for name in ("object", "type") if isinstance(sent.get(name), str)), path)
    lost = {f"{path}.{name}" if path else name for name in sent if name not in kept}
    return lost.union(*(beyond(sent[name], kept[name], path) for name in sent if name in kept))


def valid(model, sent, what):
    """A value of the model, or an AssertionError."""
    try:
        made = model.model_validate_json(json.dumps(sent), strict=True)
    except ValueError as error:
        raise AssertionError(f"{what}: {error}") from error
    more = {name for name in beyond(sent, made.model_dump(mode="json", by_alias=True, exclude_unset=True))} - BEYOND
    expect(not more, f"{what}: fields that the specification does not have: {sorted(more)}")
    return sent


def settled(response, status="completed"):
    """A whole answer that ended with this status, as all its items but the last have to."""
    valid(types.ResponseResource, response, "the response")
    expect(response["status"] == status, f"status {response['status']}, expected {status}")
    expect(response["output"], "there are no items")
    states = [item["status"] for item in response["output"]]
    expect(states == ["completed"] * (len(states) - 1) + [status], f"the items are {states}, the response is {status}")
    expect((response["incomplete_details"] is None) == (status == "completed"), f"incomplete_details: {response['incomplete_details']}")
    return response


def whole(address, status="completed", **body):
    code, _, text = ask(address, "/v1/responses", {"model": "tiny", "temperature": 0, **body})
    expect(code == 200, f"status {code}: {text}")
    return settled(json.loads(text), status)


def streamed(address, status="completed", **body):
    """The response at the end of a stream, and the types of its events."""
    code, headers, text = ask(address, "/v1/responses", {"model": "tiny", "temperature": 0, "stream": True, **body})
    expect(code == 200 and headers["content-type"].startswith("text/event-stream"), f"status {code}: {text}")
    blocks = [block for block in text.removesuffix("\n\n").split("\n\n") if not block.startswith(":")]
    expect(blocks[-1] == "data: [DONE]", f"the last event is {blocks[-1][:200]}")
    events = []
    for number, block in enumerate(blocks[:-1]):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        expect(name == "event: " + event["type"], f"{name} names {event['type']}")
        expect(event["sequence_number"] == number, f"event {number} has the number {event['sequence_number']}")
        known = RENAMED.get(event["type"], event["type"])
        expect(known in EVENTS, f"there is no event {event['type']}")
        valid(EVENTS[known], {**event, "type": known}, event["type"])
        events.append(event)
    names = [event["type"] for event in events]
    expect(names[:2] == ["response.created", "response.in_progress"] and names[-1] == f"response.{status}", f"events: {names}")
    rebuilt(events[2:-1], settled(events[-1]["response"], status)["output"])
    return events[-1]["response"], names


def rebuilt(events, output):
    """The events between the first and the last give the output, piece by piece."""
    items, text = [], ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        expect(event["output_index"] == len(items) - (kind != "output_item.added"), f"{kind} of item {event['output_index']}")
        if kind == "output_item.added":
            expect(event["item"]["status"] == "in_progress", f"a new item is {event['item']['status']}")
            items.append(event["item"])
            text = ""
        elif kind == "output_item.done":
            expect(event["item"]["id"] == items[-1]["id"] and event["item"] == output[len(items) - 1], "an item is not that of the response")
            said = event["item"]["arguments"] if event["item"]["type"] == "function_call" else event["item"]["content"][0]["text"]
            expect(said == text, f"the pieces are {text!r}, the item {said!r}")
        else:
            expect(event["item_id"] == items[-1]["id"], f"{kind} of another item")
            text += event.get("delta", "")
            expect(not kind.endswith("_text.done") or event["text"] == text, f"{kind}: {event.get('text')!r} is not {text!r}")
    expect(len(items) == len(output), f"{len(items)} items began, the response has {len(output)}")


def both(address, status="completed", **body):
    """The same, whole and streamed."""
    one = whole(address, status, **body)
    other, names = streamed(address, status, **body)

    def said(response):
        return [(item["type"], item.get("content"), item.get("name"), item.get("arguments")) for item in response["output"]]

    expect(said(one) == said(other), f"whole {said(one)}, streamed {said(other)}")
    expect(one["usage"]["output_tokens"] == other["usage"]["output_tokens"], "whole and streamed have other counts of tokens")
    return one, names


def refused(address, code, param, body, path="/v1/responses"):
    found, headers, text = ask(address, path, body)
    expect(found == code and headers["content-type"] == "application/json", f"status {found}, expected {code}: {text}")
    error = valid(types.ErrorPayload, json.loads(text)["error"], "the error")
    expect(error["param"] == param, f"the error names {error['param']}, expected {param}: {error['message']}")


def conversations(address):
    question = message("user", "Where is the hat?")
    both(address, input=[question])
    both(address, input="Where is the hat?", instructions="Be brief.", metadata={"of": "a test"}, max_output_tokens=50)
    both(address, input=[message("system", "You are a pirate."), question])
    both(address, input=[message("developer", [{"type": "input_text", "text": "Be brief."}]), question])
    before = message("assistant", [{"type": "output_text", "text": "In the box.", "annotations": []}])
    both(address, input=[question, before, message("user", [{"type": "input_text", "text": "And the dog?"}])])


def goes_on(address):
    first, _ = both(address, input="Where is the hat?")
    second, _ = both(address, input="And the dog?", previous_response_id=first["id"])
    expect(second["previous_response_id"] == first["id"], "the answer before is not named")
    said = [message("user", "Where is the hat?"), message("assistant", first["output"][0]["content"][0]["text"]),
            message("user", "And the dog?")]
    expect(whole(address, input=said)["output"][0]["content"] == second["output"][0]["content"], "it goes on from something else")
    code, _, text = ask(address, f"/v1/responses/{first['id']}")
    expect(code == 200 and settled(json.loads(text))["output"] == first["output"], f"status {code}: another answer is kept")


def calls(address):
    asked = {"input": "What is the weather in Rome?", "tools": [TOOL], "tool_choice": "required", "max_output_tokens": 200}
    made, names = both(address, **asked)
    item = made["output"][-1]
    expect(item["type"] == "function_call" and item["name"] == "get_weather", f"{item}")
    expect(set(json.loads(item["arguments"])) == {"location"}, f"arguments {item['arguments']}")
    for name in ["delta", "done"]:
        expect(f"response.function_call_arguments.{name}" in names, f"no event of arguments: {names}")
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
    both(address, input=[message("user", asked["input"]), item, result], tools=[TOOL])
    both(address, input=[result], previous_response_id=made["id"], tools=[{**TOOL, "description": "The weather.", "strict": True}])
    both(address, **{**asked, "tool_choice": {"type": "function", "name": "get_weather"}})


def formats(address):
    answer, _ = both(address, input="Where?", text={"format": {"type": "json_object"}}, max_output_tokens=300)
    expect(answer["output"][0]["content"][0]["text"].startswith("{"), "no object")
    # The models say that the schema of an answer is null: what else stands there is compared with what was sent.
    sent = {"type": "json_schema", "name": "place", "schema": PARAMETERS}
    code, _, text = ask(address, "/v1/responses", {"input": "Where?", "text": {"format": sent}})
    answer = json.loads(text)
    expect(code == 200 and answer["text"]["format"].pop("schema") == PARAMETERS, f"status {code}: {text}")
    answer["text"]["format"]["schema"] = None
    expect(set(json.loads(settled(answer)["output"][0]["content"][0]["text"])) == {"location"}, "not of the schema")


def cut(address):
    answer, _ = both(address, "incomplete", input="Where is the hat?", max_output_tokens=1)
    expect(answer["incomplete_details"] == {"reason": "max_output_tokens"} and answer["completed_at"] is None, "why it ended is not told")
    both(address, "incomplete", input="Where?", tools=[TOOL], tool_choice="required", max_output_tokens=20)


def errors(address):
    refused(address, 400, "input", {})
    refused(address, 400, "temperature", {"input": "Where?", "temperature": 5})
    refused(address, 400, "temprature", {"input": "Where?", "temprature": 1})
    refused(address, 404, "model", {"input": "Where?", "model": "another"})
    refused(address, 400, "previous_response_id", {"input": "Where?", "previous_response_id": "resp-none"})
    refused(address, 404, None, None, "/v1/responses/resp-none")
    image = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PIXEL, "detail": "auto"}]
    refused(address, 400, "input[0].content[1]", {"input": [message("user", image)]})  # no model here sees


def thinker():
    """The built-in model, which likes to answer "In hat.": the first and the last token of that open and close reasoning, and the template
    opens it."""
    folder = WORK / "thinker"
    shutil.copytree(qeng.ROOT / "recipes/tiny", folder)
    path = folder / "tokenizer.json"
    tokenizer = read_json(path)
    model, special = tokenizer["model"], tokenizer["added_tokens"]
    for content, text in [("<think>", "In"), ("</think>", ".")]:
        model["vocab"][content] = model["vocab"].pop(text)
        model["merges"] = [pair for pair in model["merges"] if text not in (*pair, "".join(pair))]
        special.append({**special[0], "id": model["vocab"][content], "content": content, "special": False})
    path.write_text(json.dumps(tokenizer))
    config = folder / "tokenizer_config.json"
    config.write_text(config.read_text().replace(r"assistant\\n", r"assistant\\n<think>"))
    return folder


def reasoning(address):
    """It ends its answer after its reasoning, unless a format makes it go on."""
    answer, names = both(address, "incomplete", input="Where is the hat?", text={"format": {"type": "json_object"}}, max_output_tokens=40)
    expect([item["type"] for item in answer["output"]] == ["reasoning", "message"], f"{answer['output']}")
    expect(answer["output"][0]["content"][0] == {"type": "reasoning_text", "text": " hat"}, f"{answer['output'][0]}")
    expect({"response.reasoning_text.delta", "response.reasoning_text.done"} <= set(names), f"{names}")
    expect(answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 2, f"{answer['usage']}")
    both(address, "incomplete", input="Where is the hat?", max_output_tokens=1)


with serving() as address:
    with check("Open Responses: answers in conversations, whole and streamed, are the specification's"):
        conversations(address)
    with check("Open Responses: previous_response_id goes on from what was said"):
        goes_on(address)
    with check("Open Responses: calls of functions"):
        calls(address)
    with check("Open Responses: answers bound to a format"):
        formats(address)
    with check("Open Responses: an answer that is cut off is incomplete, and so is its last item"):
        cut(address)
    with check("Open Responses: errors"):
        errors(address)
with check("Open Responses: reasoning"), serving("--model", str(thinker()), "--name", "tiny") as address:
    reasoning(address)
row("openresponses-types", importlib.metadata.version("openresponses-types"), 7)
