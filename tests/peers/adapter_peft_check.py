"""qeng's adapter under PEFT, and the merged model under transformers, both in f32."""
import torch_model
import qeng
import training
import transformers
from peers import TEXT, WORK, check, divergences, expect, row, same_ids, smollm2

TOKENS = 256
SAME = 1e-8  # KL in nats: f32 sums in other orders come to 1e-11, one rounding of weights to bf16 to 1e-4

folder = training.trained("f32")
exact_path = qeng.quantized(smollm2(), WORK / "exact.gguf", "f32")


def same_logits(name, ours, theirs):
    with check(name):
        divergence, apart = divergences(theirs, ours).max(), abs(ours - theirs).max()
        row(name, f"{divergence:.1e}", f"{apart:.1e}")
        expect(divergence <= SAME, f"KL of a token is up to {divergence:.1e} nats, expected at most {SAME:.0e}; logits are up to {apart:.1e} apart")


ids = qeng.answers(smollm2(), texts=[TEXT])["tokens"][0]
with check("the merged folder's tokenizer under transformers"):
    same_ids(ids, transformers.AutoTokenizer.from_pretrained(folder / "merged")(TEXT)["input_ids"], "text.txt", "transformers")
ids = ids[:TOKENS]

row("f32 logits", "largest KL of a token", "largest difference")
base = torch_model.base("f32")
plain = torch_model.logits(base, ids)
same_logits("SmolLM2 under transformers", qeng.logits(exact_path, ids), plain)
adapted = torch_model.logits(torch_model.with_adapter(base, folder / "adapter"), ids)
with check("the adapter changes the model"):
    change = divergences(plain, adapted).mean()
    expect(change > 1e-3, f"KL is {change:.1e} after {training.STEPS} steps")
same_logits("the adapter under PEFT", qeng.logits(exact_path, ids, adapter=str(folder / "adapter")), adapted)
same_logits("the adapter as a GGUF file", qeng.logits(exact_path, ids, adapter=str(folder / "adapter.gguf")), adapted)
merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch_model.DTYPES["f32"])
same_logits("the merged model under transformers", torch_model.logits(merged, ids), adapted)
