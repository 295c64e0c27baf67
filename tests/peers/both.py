"""A GGUF file under qeng and under llama.cpp: the same perplexity, the same greedy text, and qeng as near to exact arithmetic as
llama.cpp is.

KL divergences are from f32 logits, in nats: `weights` from those of the model before it was quantized, which counts what the type
rounds; `engine` from those of this file's decoded weights, which counts what the engine rounds (activations, for block types).
"""
import llama
import numpy
import qeng
from peers import TEXT, WORK, check, divergences, expect, losses, row, smollm2

TOKENS, GREEDY = 256, 24
PROMPT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"

# Roundings of two engines fall differently at each token. Means of 256 tokens differ by chance by so many standard errors at most,
# which the differences at each token tell: at 1,500 tokens the largest of seven types was 1.7.
ERRORS = 4
SUMS = 1e-6  # f32: what orders of summation leave of a mean
# KL of qeng from llama.cpp, nats. Block types came to 3.5e-3 to 6.5e-3: both engines round activations to 8 bits. llama.cpp rounds them
# to f16 and bf16 beside weights of these types (1.5e-6, 1.1e-4), and in f32 only sums differ (5e-12).
APART = {"f32": 1e-9, "f16": 1e-5, "bf16": 5e-4}
APART_BLOCKS = 1.5e-2


def difference(ours, theirs):
    """(mean of ours - theirs, its standard error)."""
    apart = numpy.asarray(ours) - numpy.asarray(theirs)
    return float(apart.mean()), float(apart.std() / len(apart) ** 0.5)


def same_text(ours, theirs, rows, noise):
    """Greedy ids are the same up to a tie: where they part, llama.cpp sets its token apart by less than engines differ by chance."""
    for at, (mine, its) in enumerate(zip(ours, theirs)):
        if mine != its:
            margin = float(rows[at][its] - rows[at][mine])
            expect(margin <= ERRORS * noise, f"token {at} is {mine} in qeng, {its} in llama.cpp, which prefers it by {margin:.3f}; "
                   f"logits of the two engines differ by {noise:.3f} (rms), so it is no tie")
            return f"{at} of {GREEDY}, then a tie"
    return f"{GREEDY} of {GREEDY}"


def compare(name, path, exact, adapter=None, kind=None):
    """Checks and a row of the table of file `path` of type `kind` (none: a block type), whose model before it was quantized has logits
    `exact`. adapter: a GGUF file on it."""
    more = {"adapter": str(adapter)} if adapter else {}
    ours = qeng.answers(path, ids=ids, prompt=prompt, count=GREEDY, **more)
    with llama.Model(path, adapter) as model:
        theirs, (text, rows) = model.logits(ids), model.greedy(prompt, GREEDY)
    decoded = qeng.logits(qeng.quantized(path, WORK / "decoded.gguf", "f32"), ids, **more)
    means, pairs = [], [losses(each, ids) for each in (ours["logits"], theirs)]
    for what, reference in ("weights", exact), ("engine", decoded):
        mine, its = divergences(reference, ours["logits"]), divergences(reference, theirs)
        means += [mine.mean(), its.mean()]
        with check(f"{name}: KL of {what} is at most llama.cpp's"):
            mean, error = difference(mine, its)
            expect(mean <= ERRORS * error + SUMS, f"{mine.mean():.3e} in qeng, {its.mean():.3e} in llama.cpp: {mean:.1e} more, "
                   f"and chance explains {ERRORS} times {error:.1e}")
    if kind in APART:
        with check(f"{name}: weights are kept"):
            expect(max(means[:2]) <= APART[kind], f"KL from the model that was written is {means[0]:.1e} nats under qeng, {means[1]:.1e} under "
                   f"llama.cpp, at most {APART[kind]:.0e}")
    apart, limit = float(divergences(theirs, ours["logits"]).mean()), APART.get(kind, APART_BLOCKS)
    with check(f"{name}: logits of llama.cpp"):
        expect(apart <= limit, f"KL of qeng's from llama.cpp's is {apart:.1e} nats, at most {limit:.0e}")
    perplexities = [float(numpy.exp(pair.mean())) for pair in pairs]
    with check(f"{name}: perplexity of llama.cpp"):
        mean, error = difference(*pairs)
        expect(abs(mean) <= ERRORS * error + SUMS, f"{perplexities[0]:.4f} in qeng, {perplexities[1]:.4f} in llama.cpp: the mean loss is "
               f"{mean:.1e} apart, and chance explains {ERRORS} times {error:.1e}")
    greedy = "other"
    with check(f"{name}: greedy text of llama.cpp"):
        moved = ours["logits"] - theirs
        noise = float(numpy.sqrt((moved - moved.mean(1, keepdims=True)).astype(float).var()))
        greedy = same_text(ours["greedy"], text, rows, noise * 2 ** 0.5)
    row(name, *(f"{mean:.2e}" for mean in means), f"{apart:.1e}", *(f"{each:.3f}" for each in perplexities), greedy)


def heading(what):
    row(what, "weights: qeng", "llama.cpp", "engine: qeng", "llama.cpp", "between them", "perplexity: qeng", "llama.cpp", "greedy tokens alike")


ids, prompt = qeng.answers(smollm2(), texts=[TEXT, PROMPT])["tokens"]
ids = ids[:TOKENS]
