"""qeng's LoRA adapter as a GGUF file under llama.cpp, and the model with the adapter merged in, quantized. See both.py."""
import both
import qeng
import training
from peers import WORK, check, smollm2


folder = training.trained("f32")
adapter, merged = folder / "adapter.gguf", folder / "merged"
exact_path = qeng.quantized(smollm2(), WORK / "exact.gguf", "f32")
exact = qeng.logits(exact_path, both.ids, adapter=str(adapter))

both.heading("adapter")
with check("adapter on f32 weights"):
    both.compare("adapter on f32", exact_path, exact, adapter, "f32")
with check("adapter on the original Q4_1 file"):
    both.compare("adapter on Q4_1", smollm2(), exact, adapter)
for kind in "f32", "q8_0", "q4_k_m":
    with check(f"merged, and written as {kind}"):
        both.compare(f"merged, {kind}", qeng.quantized(merged, WORK / "model.gguf", kind), exact, kind=kind)
