"""Files that qeng quantized, of SmolLM2, in every type that it writes: llama.cpp's figures of the same file, and how far each engine
is from exact weights (KL from the f32 logits of the Q4_1 file's decoded weights, nats)."""
import llama
import numpy
import qeng
from peers import TEXT, WORK, check, divergences, expect, log_softmax, perplexity, row, same_ids, smollm2

TOKENS, GREEDY = 256, 24
PROMPT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
UNKNOWN = {"pq2_0", "ptq1_0"}  # types of llama.cpp's forks

ids = qeng.answers(smollm2(), texts=[TEXT, PROMPT])["tokens"]
ids, prompt = ids[0][:TOKENS], ids[1]
exact = qeng.logits(qeng.quantized(smollm2(), WORK / "exact.gguf", "f32"), ids)


def of_llama(path):
    with llama.Model(path) as model:
        return (model.logits(ids), *model.greedy(prompt, GREEDY))

names = qeng.run("tests/peers/types.lua").split()
import sys, time
for name in (sys.argv[1:] or ["file"] + names):
    t0=time.time()
    path = smollm2() if name == "file" else qeng.quantized(smollm2(), WORK / "model.gguf", name)
    t1=time.time()
    o = qeng.answers(path, ids=ids, prompt=prompt, count=GREEDY)
    t2=time.time()
    try: tl, tg, rows = of_llama(path)
    except llama.Refused as e: print(name, e); continue
    t3=time.time()
    d = qeng.logits(qeng.quantized(path, WORK / "decoded.gguf", "f32"), ids)
    t4=time.time()
    k=lambda a,b: float(divergences(a,b).mean())
    print(f"{name:8} KL exact||q {k(exact,o['logits']):.5e} exact||l {k(exact,tl):.5e} ratio {k(exact,o['logits'])/k(exact,tl):.5f}  dec||q {k(d,o['logits']):.3e} dec||l {k(d,tl):.3e}  q||l {k(o['logits'],tl):.3e} ppl {perplexity(o['logits'],ids):.4f} {perplexity(tl,ids):.4f} greedy same {sum(1 for a,b in zip(tg,o['greedy']) if a==b)} {[i for i,(a,b) in enumerate(zip(tg,o['greedy'])) if a!=b][:1]} times {t1-t0:.1f} {t2-t1:.1f} {t3-t2:.1f} {t4-t3:.1f}",flush=True)
