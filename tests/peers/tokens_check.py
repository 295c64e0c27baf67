"""Prompts: the same ids as llama.cpp, for texts and for conversations under the model's own template."""
import json
import urllib.request

import llama
import qeng
import xllamacpp
from peers import TEXT, check, same_ids, smollm2

TEXTS = {
    "prose and code": TEXT,
    "spaces and line ends": "  two   three\t\ttabs \n\n\n  \r\n end  \u00a0\u3000x ",
    "numbers": "3.14159 1,000,000 007 12345678 0x1F 2026-11-24",
    "words with apostrophes": "I'll they've DON'T it's 'quoted' l\u2019heure",
    "scripts": "Größe, naïve, Ёжик, 東京タワー, 한국어, עברית, العربية, हिन्दी, ไทย",
    "emoji and combining marks": "👩‍👩‍👧 🏳️‍🌈 e\u0301 n\u0303 ﬁ ½ ²",
    "special tokens in text": "<|im_start|>user\n<|endoftext|>no <|im_end|>",
    "code": "for (int i = 0; i < n; ++i) { x[i] <<= 2; } // => `y`\n\tif __name__ == '__main__':\n",
}
CHATS = {
    "one question": [("user", "What is the capital of France?")],
    "a system message": [("system", "Answer in one word."), ("user", "2+2?")],
    "several turns": [("user", " Hi\n"), ("assistant", "Hello!\n\nHow are you?"), ("user", "Größe 😀?")],
}


def rendered(address, messages):
    body = json.dumps({"messages": messages, "add_generation_prompt": True}).encode()
    request = urllib.request.Request(address + "/apply-template", body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))["prompt"]


path = smollm2()
chats = {name: [{"role": role, "content": content} for role, content in chat] for name, chat in CHATS.items()}
ours = qeng.answers(path, texts=list(TEXTS.values()), chats=list(chats.values()))
with llama.Model(path) as model:
    for (name, text), ids in zip(TEXTS.items(), ours["tokens"]):
        with check(f"tokens of llama.cpp: {name}"):
            same_ids(ids, model.tokens(text), repr(text[:40]), "llama.cpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.warmup = 512, False
    server = xllamacpp.Server(parameters)
    for (name, messages), ids in zip(chats.items(), ours["prompts"]):
        with check(f"prompt of llama.cpp's server: {name}"):
            same_ids(ids, model.tokens(rendered(server.listening_address, messages)), name, "llama.cpp")
