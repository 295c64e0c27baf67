"""LoRA training of SmolLM2, base weights as the Q4_1 file has them: the losses of transformers and PEFT, in f32, on the same batches
from the same adapter."""
import torch_model
import training
from peers import Skip, check, expect, read_json, row

EXACT = 1e-4  # f32, any step: sums in other orders came to 5e-5 in 100 steps of AdamW
# bf16: what rounding activations to 8 bits does to the loss of a step's 20 to 80 trained tokens: 9e-3 (rms of the steps), as much as
# transformers' own bf16 losses differ from its f32 losses. Of the mean of all steps it leaves 1e-3.
RMS_BF16, MEAN = 2e-2, 5e-3

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

row(f"LoRA, {training.STEPS} steps", "first loss", "mean of the last ten", "from PEFT: largest of a step", "rms of the steps", "of their mean")
row("PEFT f32", f"{peft[0]:.4f}", f"{sum(peft[-10:]) / 10:.4f}", "", "", "")
for dtype, ours in runs.items():
    apart = [abs(a - b) / b for a, b in zip(ours, peft)]
    rms, of_mean = (sum(each * each for each in apart) / len(apart)) ** 0.5, abs(sum(ours) / sum(peft) - 1)
    row(f"qeng {dtype}", f"{ours[0]:.4f}", f"{sum(ours[-10:]) / 10:.4f}", f"{max(apart):.1e}", f"{rms:.1e}", f"{of_mean:.1e}")
    with check(f"losses in {dtype} are PEFT's"):
        at = apart.index(max(apart))
        worst = f"the farthest is step {at + 1}: {ours[at]:.6f} in qeng, {peft[at]:.6f} in PEFT"
        if dtype == "f32":
            expect(apart[at] <= EXACT, f"{apart[at]:.1e} apart, at most {EXACT:.0e}; {worst}")
        expect(rms <= RMS_BF16, f"{rms:.1e} apart (rms of the steps), at most {RMS_BF16:.0e}; {worst}")
        expect(of_mean <= MEAN, f"the mean loss is {of_mean:.1e} from PEFT's, at most {MEAN:.0e}; {worst}")
    with check(f"training in {dtype} learns"):
        expect(sum(ours[-10:]) < sum(ours[:10]), f"the last ten losses {ours[-10:]} are no lower than the first ten {ours[:10]}")
