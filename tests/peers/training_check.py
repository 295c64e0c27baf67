"""LoRA training of SmolLM2, base weights as the Q4_1 file has them: the losses of transformers and PEFT, in f32, on the same batches
from the same adapter."""
import torch_model
import training
from peers import Skip, check, expect, read_json, row

# What is compared, in nats: the curve, which is the mean loss of each 20 steps in a row, and single steps, whose loss is that of 20 to
# 80 trained tokens. f32: sums in other orders came to 5e-6 of the curve and 9e-5 of a step, in 100 steps of AdamW. bf16: what
# rounding activations to 8 bits does to single steps is chance, 1e-2 (rms), as much as transformers' own bf16 losses differ from its
# f32 losses; to the curve it does 3.4e-3.
SMOOTH = 20
CURVE = {"f32": 2e-5, "bf16": 5e-3}
STEP_F32, RMS_BF16 = 2e-4, 2e-2


def curve(losses):
    return [sum(losses[i:i + SMOOTH]) / SMOOTH for i in range(len(losses) - SMOOTH + 1)]


def farthest(ours, theirs):
    """(the largest difference, where)."""
    return max((abs(a - b), i) for i, (a, b) in enumerate(zip(ours, theirs)))


with check("training on code_alpaca_2k.json"):
    why = training.records()[1]
    if why:
        raise Skip(why)

runs = {}
for dtype in "f32", "bf16":
    with check(f"qeng trains in {dtype}"):
        runs[dtype] = training.losses(training.trained(dtype))
        expect(len(runs[dtype]) == training.STEPS, f"{len(runs[dtype])} losses in metrics.jsonl, expected {training.STEPS}")

with check("PEFT trains the same batches"):
    folder = training.trained("f32")
    model = torch_model.with_adapter(torch_model.base("f32"), folder / "adapter0", trainable=True).train()
    batches = read_json(folder / "batches.json")
    peft = torch_model.train(model, batches["batches"], batches["row_tokens"], training.RATE)

row(f"LoRA, {training.STEPS} steps", "first loss", "mean of the last ten", "from PEFT, nats: the curve at most", "a step at most", "steps, rms")
row("PEFT f32", f"{peft[0]:.4f}", f"{sum(peft[-10:]) / 10:.4f}", "", "", "")
for dtype, ours in runs.items():
    smooth, smooth_at = farthest(curve(ours), curve(peft))
    step, at = farthest(ours, peft)
    rms = (sum((a - b) ** 2 for a, b in zip(ours, peft)) / len(peft)) ** 0.5
    row(f"qeng {dtype}", f"{ours[0]:.4f}", f"{sum(ours[-10:]) / 10:.4f}", f"{smooth:.1e}", f"{step:.1e}", f"{rms:.1e}")
    with check(f"losses in {dtype} are PEFT's"):
        expect(smooth <= CURVE[dtype], f"the mean of steps {smooth_at + 1} to {smooth_at + SMOOTH} is {smooth:.1e} nats apart, at most {CURVE[dtype]:.0e}")
        if dtype == "f32":
            expect(step <= STEP_F32, f"step {at + 1} is {ours[at]:.6f} in qeng, {peft[at]:.6f} in PEFT, at most {STEP_F32:.0e} apart")
        expect(rms <= RMS_BF16, f"steps are {rms:.1e} nats apart (rms), at most {RMS_BF16:.0e}")
    with check(f"training in {dtype} learns"):
        expect(sum(ours[-10:]) < sum(ours[:10]), f"the last ten losses {ours[-10:]} are no lower than the first ten {ours[:10]}")
