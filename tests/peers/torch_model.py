"""SmolLM2 under transformers and PEFT, which read the GGUF file with code of their own."""
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TORCH_USE_RTLD_GLOBAL"] = "1"  # see `environment`

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from peers import smollm2  # noqa: E402

torch.set_num_threads(2)
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def base(dtype):
    path = smollm2()
    return transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=DTYPES[dtype])


def with_adapter(model, folder, trainable=False):
    return peft.PeftModel.from_pretrained(model, str(folder), is_trainable=trainable)


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].float().numpy()


def stepped(parameters, rates, losses):
    """Loss of each step of AdamW at these rates, gradients clipped at norm 1. losses: a function for each step that gives its loss."""
    parameters = list(parameters)
    optimizer, found = torch.optim.AdamW(parameters, weight_decay=0.0), []
    for rate, loss_of in zip(rates, losses):
        optimizer.param_groups[0]["lr"] = rate
        loss = loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def train(model, batches, row_tokens, rate):
    """Loss of each step: AdamW on the adapter, gradients clipped at norm 1, attention within documents."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    found = []
    for batch in batches:
        targets = torch.tensor(batch["targets"]).view(-1, row_tokens)
        positions = torch.tensor(batch["positions"]).view(-1, row_tokens)
        document = (positions == 0).cumsum(1)
        mask = (document[:, None, :, None] == document[:, None, None, :]) & torch.ones(row_tokens, row_tokens, dtype=torch.bool).tril()
        logits = model(input_ids=torch.tensor(batch["tokens"]).view(-1, row_tokens), position_ids=positions, attention_mask=mask, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found
