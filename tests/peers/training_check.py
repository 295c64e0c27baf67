"""LoRA training of SmolLM2, base weights as the Q4_1 file has them: the losses of transformers and PEFT, in f32, on the same batches
from the same adapter."""
import torch_model
import training
from peers import Skip, check, expect, read_json, row

EXACT = 1e-4  # f32, any step: orders of summation alone; 8 steps came to 1e-5, and 100 steps of AdamW make more of it
# bf16: what rounding activations to 8 bits does to a step of some 70 trained tokens. transformers' own losses of such a batch lie
# 1e-2 from its f32 losses, and as far apart between its two kinds of attention. Of the mean of all steps it leaves little.
STEP_BF16, MEAN_BF16 = 2.5e-2, 5e-3

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

row(f"LoRA, {training.STEPS} steps", "first loss", "mean of the last ten", "largest difference from PEFT", "of the mean")
row("PEFT f32", f"{peft[0]:.4f}", f"{sum(peft[-10:]) / 10:.4f}", "", "")
for dtype, ours in runs.items():
    apart = [abs(a - b) / b for a, b in zip(ours, peft)]
    of_mean = abs(sum(ours) / sum(peft) - 1)
    row(f"qeng {dtype}", f"{ours[0]:.4f}", f"{sum(ours[-10:]) / 10:.4f}", f"{max(apart):.1e}", f"{of_mean:.1e}")
    with check(f"losses in {dtype} are PEFT's"):
        at = apart.index(max(apart))
        limit = EXACT if dtype == "f32" else STEP_BF16
        expect(apart[at] <= limit, f"step {at + 1}: loss {ours[at]:.6f} in qeng, {peft[at]:.6f} in PEFT, {apart[at]:.1e} apart, at most {limit:.0e}")
        expect(of_mean <= MEAN_BF16, f"the mean loss is {of_mean:.1e} from PEFT's, at most {MEAN_BF16:.0e}")
    with check(f"training in {dtype} learns"):
        expect(sum(ours[-10:]) < sum(ours[:10]), f"the last ten losses {ours[-10:]} are no lower than the first ten {ours[:10]}")
