"""q.hopfield on the built-in model: the weights that a cue gives to what is stored, those of PyTorch from transformers' hidden states."""
import json
import subprocess

import qeng
import torch_model  # noqa: F401  first: it sets the environment
import torch
import transformers
from peers import check, expect, row

TINY = qeng.ROOT / "recipes/tiny"
STORED = ["Where is the hat?", "How many dogs are there?", "Write a poem on the river.", "Where did Petra go?", "Count the trains."]
CUES = ["Where is the kettle?", "What is the number of hats?", "Sing of the dog."]
BETA, MOST = 16, 1e-4

with check("weights are those of PyTorch"):
    code = f"""local q = require "qeng" q.device {{ device = "cpu" }} local model = q.load({json.dumps(str(TINY))}, {{ dtype = "f32" }})
      local memory = q.hopfield(model, {{ beta = {BETA} }})
      local stored, cues = q.json.decode {json.dumps(json.dumps(STORED))}, q.json.decode {json.dumps(json.dumps(CUES))}
      for i, text in ipairs(stored) do memory:store(text, i) end
      local out = {{}}
      for i, text in ipairs(cues) do out[i] = {{ weights = memory:weights(text):table(), ids = model.tokenizer:encode(text) }} end
      for i, text in ipairs(stored) do stored[i] = model.tokenizer:encode(text) end
      print(q.json.encode {{ cues = out, stored = stored }})"""
    found = json.loads(subprocess.run([qeng.EXECUTABLE, "-e", code], capture_output=True, text=True, check=True).stdout)
    model = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()

    def state(ids):
        with torch.no_grad():
            return model.model(torch.tensor([ids])).last_hidden_state[0].mean(0)

    keys = torch.stack([state(ids) for ids in found["stored"]])
    mean = keys.mean(0)
    unit = torch.nn.functional.normalize
    off = 0
    for cue in found["cues"]:
        theirs = (BETA * unit(keys - mean, dim=-1) @ unit(state(cue["ids"]) - mean, dim=-1)).softmax(-1)
        off = max(off, (theirs - torch.tensor(cue["weights"])).abs().max().item())
    row("q.hopfield", "stored", "cues", "weights from PyTorch at most")
    row("built-in model", len(STORED), len(CUES), f"{off:.1e}")
    expect(off <= MOST, f"{off:.1e} apart, at most {MOST:.0e}")
