"""Writes models/NAME.json: small models of one architecture each. Of each case: the logits that transformers and llama.cpp make in f32,
the loss, the gradients, the losses of 20 steps of AdamW in full and of LoRA (PEFT), and the entries of its GGUF file.
Weights are a formula of their names (tests/lua/formula.lua has it too).

    TORCH_USE_RTLD_GLOBAL=1 $(tests/peers/environment) tests/golden/models_golden.py [NAME...]
"""
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy

TOKENS = [3, 17, 5, 11, 2, 19, 7, 13, 1, 22]
STEPS, RATE, RANK, ALPHA = 20, 3e-3, 2, 6
EPS = 1e-5  # where a softmax is saturated its gradient is rounding alone, here 5e-7 at most; with 1e-8 AdamW makes whole steps of that
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BASE = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=24,
            max_position_embeddings=64, rms_norm_eps=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
here = os.path.dirname(os.path.abspath(__file__))


def common(v):
    """The entries that llama.cpp's converter writes for most architectures."""
    return {"context_length": v["max_position_embeddings"], "embedding_length": v["hidden_size"],
            "feed_forward_length": v["intermediate_size"], "block_count": v["num_hidden_layers"],
            "attention.head_count": v["num_attention_heads"], "attention.head_count_kv": v["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": v["rms_norm_eps"], "rope.freq_base": v["rope_theta"], "vocab_size": v["vocab_size"],
            "rope.dimension_count": v["hidden_size"] // v["num_attention_heads"]}


def ssm_tensor(name, data, v):
    """A tensor of a recurrent layer as the converter reshapes and maps it: {name there: data}."""
    if name.endswith("conv1d.weight"):
        return {name: data.squeeze()}
    if name.endswith("A_log"):
        return {name: -numpy.exp(data).reshape(-1, 1)}
    if name.endswith(".D"):
        return {name: data.reshape(-1, 1)}
    if name.endswith("mixer.norm.weight"):
        return {name: data.reshape(v["n_groups"], -1)}
    return {name.replace(".dt_bias", ".dt_proj.bias"): data}


def value_heads(data, first, width, v):
    """Rows from `first` on, of value heads of so many each, in GGUF's order: the first of each key head, then the second of each."""
    keys, count = v["linear_num_key_heads"], v["linear_num_value_heads"]
    own = data[first:].reshape(keys, count // keys, width, *data.shape[1:]).swapaxes(0, 1)
    return numpy.concatenate([data[:first], own.reshape(data[first:].shape)])


def delta_tensors(name, data, v):
    """A tensor of a gated delta net as the converter reorders, reshapes and maps it: {name there: data}."""
    layer, _, part = name.partition(".linear_attn.")
    if not part:
        return {name: data}
    wide, first = v["linear_value_head_dim"], 2 * v["linear_num_key_heads"] * v["linear_key_head_dim"]
    if part == "conv1d.weight":
        data = data.squeeze()
    if part == "A_log":
        data = -numpy.exp(data)
    if v["model_type"] == "qwen3_next":  # whose rows stand by key heads, and value heads stay where they are
        if part == "in_proj_qkvz.weight":
            rows = data.reshape(v["linear_num_key_heads"], -1, data.shape[1])
            key, many = v["linear_key_head_dim"], v["linear_num_value_heads"] // v["linear_num_key_heads"] * wide
            pieces = [piece.reshape(-1, data.shape[1]) for piece in numpy.split(rows, [key, 2 * key, 2 * key + many], 1)]
            return {f"{layer}.linear_attn.in_proj_qkv.weight": numpy.concatenate(pieces[:3]), f"{layer}.linear_attn.in_proj_z.weight": pieces[3]}
    elif part in ("in_proj_qkv.weight", "conv1d.weight"):
        data = value_heads(data, first, wide, v)
    elif part == "in_proj_z.weight":
        data = value_heads(data, 0, wide, v)
    elif part == "out_proj.weight":
        data = value_heads(data.T, 0, wide, v).T.copy()
    elif part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        data = value_heads(data, 0, 1, v)
    return {name.replace("dt_bias", "dt_proj.bias"): data}


def delta_entries(v):
    rope = v.get("rope_parameters") or {}
    sections = {} if v["model_type"] == "qwen3_next" else {"rope.dimension_sections": rope.get("mrope_section", [11, 11, 10]) + [0]}
    mixture = experts(v) | {"expert_feed_forward_length": v["moe_intermediate_size"],
                            "expert_shared_feed_forward_length": v["shared_expert_intermediate_size"]} if "num_experts" in v else {}
    return sections | mixture | {
        "rope.freq_base": rope.get("rope_theta", v["rope_theta"]), "rope.dimension_count": int(v["head_dim"] * rope.get("partial_rotary_factor", 0.25)),
        "attention.key_length": v["head_dim"], "attention.value_length": v["head_dim"], "ssm.conv_kernel": v["linear_conv_kernel_dim"],
        "ssm.state_size": v["linear_key_head_dim"], "ssm.group_count": v["linear_num_key_heads"], "ssm.time_step_rank": v["linear_num_value_heads"],
        "ssm.inner_size": v["linear_value_head_dim"] * v["linear_num_value_heads"], "full_attention_interval": v.get("full_attention_interval", 4)}


def experts(v):
    return {"expert_count": v.get("num_experts") or v["num_local_experts"], "expert_used_count": v["num_experts_per_tok"]}


# What the models of gated delta nets have in common. Tokens go over two of transformers' chunks; none is 0, the padding, for which PyTorch
# has no gradient. llama.cpp takes the epsilon of norms for that of the lengths of keys too, which is 1e-6.
DELTA = dict(rope_theta=500.0, rms_norm_eps=1e-6, max_position_embeddings=256, head_dim=32, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4,
             linear_key_head_dim=16, linear_value_head_dim=16, linear_conv_kernel_dim=4)
# Wider or deeper ones choose other experts after a few steps of another rounding.
DELTA_MIXTURE = DELTA | dict(num_hidden_layers=2, full_attention_interval=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                             shared_expert_intermediate_size=16)
DELTA_TOKENS = [(7 * i * i + i) % 23 + 1 for i in range(70)]
MLP = ["gate_proj", "up_proj", "down_proj"]

# NAME: the class; values of config.json beside BASE; entries beside common(), and tensors, of the GGUF file alone; whether rows of q and k are in the order of rotated
# pairs, and whether norms add one to their weights, which GGUF has added; tokens, if not TOKENS; cases (name, what differs, and False if
# llama.cpp has no words for it, or None if it has none for the window alone, of which qeng writes a key of its own); the layers that get
# adapters, if not all; where experts are (expert_layers.py). A case with `targets` is of adapters on those layers, those of experts among
# them.
MODELS = {
    "olmo2": dict(
        hf="Olmo2ForCausalLM", values=dict(rope_theta=500.0), cases=[
            ("grouped heads", {}), ("as many heads", dict(num_key_value_heads=4)),
            ("a head that is the embedding", dict(tie_word_embeddings=True), False),
            ("attention with biases", dict(attention_bias=True), False)]),
    "smollm3": dict(
        hf="SmolLM3ForCausalLM", pairs=True, values=dict(rope_theta=500.0, num_hidden_layers=4), cases=[
            ("every fourth layer not turned", {}),
            ("a head that is the embedding", dict(tie_word_embeddings=True)),
            ("with biases", dict(attention_bias=True, mlp_bias=True), False),
            ("a list of layers", dict(no_rope_layers=[0, 1, 1, 0]), False), ("every second", dict(no_rope_layer_interval=2), False)]),
    "gpt2": dict(
        hf="GPT2LMHeadModel", transposed=lambda name: name.split(".")[-2].startswith("c_") and name.endswith("weight"),
        base=dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=24, bos_token_id=1, eos_token_id=2,
                  layer_norm_epsilon=1e-5, activation_function="gelu_new"),
        common=lambda v: {"context_length": 64, "embedding_length": 32, "feed_forward_length": v.get("n_inner") or 128, "block_count": 2,
                          "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5, "vocab_size": 24},
        values={}, cases=[
            ("four times as wide", {}), ("an inner width, and a head of its own", dict(n_inner=48, tie_word_embeddings=False))]),
    "mamba2": dict(
        hf="Mamba2ForCausalLM", tokens=[(7 * i * i + i) % 24 for i in range(150)],  # over several chunks, ours and theirs
        base=dict(hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, state_size=8, conv_kernel=4, expand=2, chunk_size=32,
                  vocab_size=24, layer_norm_epsilon=1e-5, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False),
        common=lambda v: {"context_length": 2 ** 20, "embedding_length": 32, "feed_forward_length": 0, "attention.head_count": 0,
                          "block_count": 2, "ssm.conv_kernel": v["conv_kernel"], "ssm.inner_size": 64, "ssm.state_size": 8,
                          "ssm.time_step_rank": 64 // v["head_dim"], "ssm.group_count": v["n_groups"],
                          "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 24},
        reshaped=ssm_tensor, values={}, cases=[
            ("groups of heads", dict(n_groups=2, num_heads=8, head_dim=8)), ("one group, and a head that is the embedding", dict(n_groups=1, tie_word_embeddings=True)),
            ("biases, bounded steps", dict(n_groups=1, use_bias=True, use_conv_bias=False, time_step_limit=[0.3, 0.8]), False)]),
    "gemma2": dict(
        hf="Gemma2ForCausalLM", plus_one=True, entries=lambda v: {
            "rope.dimension_count": v["head_dim"], "attention.key_length": v["head_dim"], "attention.value_length": v["head_dim"],
            "attention.sliding_window": v["sliding_window"], "attn_logit_softcapping": v["attn_logit_softcapping"],
            "final_logit_softcapping": v["final_logit_softcapping"]},
        values=dict(rope_theta=500.0, head_dim=16, num_hidden_layers=3, sliding_window=4, query_pre_attn_scalar=16,
                    attn_logit_softcapping=20.0, final_logit_softcapping=5.0, hidden_activation="gelu_pytorch_tanh",
                    tie_word_embeddings=True),
        cases=[("scores and logits capped", {}),
               ("nothing capped", dict(attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=256), False),
               ("a head of its own, biases, another scale and other windows", dict(
                   tie_word_embeddings=False, attention_bias=True, query_pre_attn_scalar=20,
                   layer_types=["full_attention", "full_attention", "sliding_attention"]), False)]),
    "gemma3": dict(
        hf="Gemma3ForCausalLM", type="gemma3_text", plus_one=True, entries=lambda v: {
            "rope.dimension_count": v["head_dim"], "attention.key_length": v["head_dim"], "attention.value_length": v["head_dim"],
            "attention.sliding_window": v["sliding_window"], "attention.sliding_window_pattern": 6, "rope.freq_base_swa": 90.0,
            "final_logit_softcapping": v["final_logit_softcapping"]},
        values=dict(rope_theta=500.0, rope_local_base_freq=90.0, head_dim=16, num_hidden_layers=6, sliding_window=4,
                    query_pre_attn_scalar=16, final_logit_softcapping=5.0, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True),
        cases=[("logits capped", {})]),
    "phi3": dict(  # as Phi-4 mini
        hf="Phi3ForCausalLM", entries=lambda v: {
            "rope.dimension_count": 6, "rope.scaling.original_context_length": v["original_max_position_embeddings"],
            "rope.scaling.attn_factor": math.sqrt(
                math.log(v["max_position_embeddings"]) / math.log(v["original_max_position_embeddings"]))},
        tensors={"rope_factors_short.weight": [1.0, 1.1, 1.25], "rope_factors_long.weight": [1.0, 2.5, 6.0]},
        values=dict(rope_theta=500.0, tie_word_embeddings=True, partial_rotary_factor=0.75, sliding_window=2048, attention_bias=False,
                    mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1, max_position_embeddings=1024,
                    original_max_position_embeddings=256,
                    rope_scaling=dict(type="longrope", short_factor=[1.0, 1.1, 1.25], long_factor=[1.0, 2.5, 6.0])),
        cases=[("a part of heads turned by factors", {}), ("beyond the original length", dict(
            max_position_embeddings=32, original_max_position_embeddings=8))]),
    "granite": dict(
        hf="GraniteForCausalLM", pairs=True, entries=lambda v: {
            "embedding_scale": float(v["embedding_multiplier"]), "attention.scale": v["attention_multiplier"],
            "residual_scale": v["residual_multiplier"], "logit_scale": float(v["logits_scaling"])},
        values=dict(rope_theta=500.0, embedding_multiplier=12.0, attention_multiplier=0.0625, residual_multiplier=0.22, logits_scaling=3.0),
        cases=[("four multipliers", {}), ("a head that is the embedding, and biases", dict(
            tie_word_embeddings=True, attention_bias=True, mlp_bias=True, residual_multiplier=1.5))]),
    "qwen3_moe": dict(
        hf="Qwen3MoeForCausalLM", word="qwen3moe", experts=("mlp", "gate_proj", "up_proj", "down_proj"), lora=ATTENTION,
        entries=lambda v: experts(v) | {"expert_feed_forward_length": v["moe_intermediate_size"]},
        values=dict(rope_theta=500.0, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True),
        cases=[
            ("two of six", {}), ("all of three", dict(num_experts=3, num_experts_per_tok=3)),
            ("scores as they are", dict(norm_topk_prob=False), False),
            ("a layer without experts", dict(mlp_only_layers=[0], attention_bias=True), False),
            ("every second layer", dict(num_hidden_layers=3, decoder_sparse_step=2, tie_word_embeddings=True), False),
            ("a window", dict(use_sliding_window=True, sliding_window=5), None),
            ("a balanced load", dict(output_router_logits=True, router_aux_loss_coef=0.05)),
            ("adapters of experts", dict(targets=ATTENTION + ["gate_proj", "up_proj", "down_proj"])),
            ("adapters of the router", dict(targets=["gate", "down_proj"]))]),
    "gpt_oss": dict(
        hf="GptOssForCausalLM", word="gpt-oss", experts="in_turns", lora=ATTENTION, rate=1e-3,  # beyond it, rounding decides the curve
        entries=lambda v: experts(v) | {
            "expert_feed_forward_length": v["intermediate_size"], "attention.sliding_window": v["sliding_window"],
            "attention.key_length": v["head_dim"], "attention.value_length": v["head_dim"], "rope.dimension_count": v["head_dim"]},
        values=dict(rope_theta=500.0, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=4, intermediate_size=32,
                    rope_parameters=dict(rope_type="default", rope_theta=500.0)),
        cases=[
            ("two of four", {}),
            ("another limit, no biases, one kind of layer", dict(swiglu_alpha=1.2, swiglu_limit=0.25, attention_bias=False,
                                                                 layer_types=["full_attention"] * 2), False),
            ("YaRN, which llama.cpp rounds", dict(rope_parameters=dict(
                rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                original_max_position_embeddings=16)), None)]),
    "qwen2_moe": dict(
        hf="Qwen2MoeForCausalLM", word="qwen2moe", experts=("mlp", "gate_proj", "up_proj", "down_proj"), lora=ATTENTION,
        entries=lambda v: experts(v) | {"expert_feed_forward_length": v["moe_intermediate_size"],
                                        "expert_shared_feed_forward_length": v["shared_expert_intermediate_size"]},
        values=dict(rope_theta=500.0, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48),
        cases=[("two of four, and a shared one", {}), ("adapters of all experts", dict(targets=ATTENTION + MLP)),
               ("adapters of the routers", dict(targets=["gate", "shared_expert_gate"])),
               ("scores that sum to one, a layer without experts", dict(norm_topk_prob=True, mlp_only_layers=[0], qkv_bias=False), False)]),
    "qwen3_5": dict(
        hf="Qwen3_5ForCausalLM", type="qwen3_5_text", word="qwen35", plus_one=True, reshaped=delta_tensors, entries=delta_entries, steps=30,
        rate=5e-4, tokens=DELTA_TOKENS, lora=ATTENTION + MLP + ["in_proj_qkv", "in_proj_z", "out_proj"], values=DELTA, cases=[
            ("two value heads of each key head", {}),
            ("one, and a head that is the embedding", dict(linear_num_value_heads=2, tie_word_embeddings=True)),
            ("three, every second layer, images' positions", dict(
                linear_num_value_heads=6, linear_conv_kernel_dim=3, full_attention_interval=2, rope_parameters=dict(
                    rope_type="default", rope_theta=300.0, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True))),
            ("biases, other sizes of values, layers as listed", dict(
                attention_bias=True, linear_value_head_dim=32, layer_types=["full_attention"] + ["linear_attention"] * 3), False),
            ("adapters of the small projections", dict(targets=["in_proj_a", "in_proj_b", "q_proj"]))]),
    "qwen3_5_moe": dict(
        hf="Qwen3_5MoeForCausalLM", type="qwen3_5_moe_text", word="qwen35moe", plus_one=True, reshaped=delta_tensors, entries=delta_entries,
        steps=30, rate=5e-4, tokens=DELTA_TOKENS, experts=("mlp", "gate_proj", "up_proj", "down_proj"), values=DELTA_MIXTURE,
        lora=ATTENTION + ["in_proj_qkv", "in_proj_z", "out_proj"] + ["shared_expert." + part for part in MLP], cases=[
            ("two of four, and a shared one", dict(targets=ATTENTION + MLP + ["in_proj_qkv", "in_proj_z", "out_proj"])),
            ("one value head of each key head", dict(linear_num_value_heads=2, tie_word_embeddings=True)),
            ("adapters of experts alone", dict(targets=MLP))]),
    "qwen3_next": dict(
        hf="Qwen3NextForCausalLM", word="qwen3next", plus_one=True, reshaped=delta_tensors, entries=delta_entries, steps=30,
        rate=5e-4, tokens=DELTA_TOKENS, experts=("mlp", "gate_proj", "up_proj", "down_proj"), values=DELTA_MIXTURE,
        lora=ATTENTION + ["in_proj_qkvz", "out_proj"], cases=[
            ("two value heads of each key head", {}), ("adapters of experts", dict(targets=MLP + ["in_proj_qkvz", "in_proj_ba"])),
            ("one", dict(linear_num_value_heads=2, targets=["in_proj_ba", "shared_expert_gate"])),
            ("scores as they are, a layer without experts", dict(norm_topk_prob=False, mlp_only_layers=[1], targets=MLP), False)]),
    "mixtral": dict(
        hf="MixtralForCausalLM", word="llama", pairs=True, experts=("block_sparse_moe", "w1", "w3", "w2"), lora=ATTENTION, entries=experts,
        rate=1e-3,  # at 3e-3 PyTorch's own curves in f32 and f64 part by 6e-5, here by 2e-6
        values=dict(rope_theta=500.0, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32), cases=[
            ("two of four", {}), ("a window", dict(sliding_window=5), None), ("a head that is the embedding", dict(tie_word_embeddings=True)),
            ("a balanced load", dict(output_router_logits=True, router_aux_loss_coef=0.05)),
            ("adapters of experts", dict(targets=ATTENTION + ["w1", "w2", "w3"]))]),
}


def formula(name, shape):
    seed, count = sum((i + 1) * byte for i, byte in enumerate(name.encode())), int(numpy.prod(shape))
    values = numpy.array([((i * 7919 + seed * 104729) % 1009) / 1009 - 0.5 for i in range(count)])
    values = (0.4 * values if len(shape) == 1 else values) + (1 if name.endswith("norm.weight") else 0)
    return values.astype(numpy.float32).reshape(shape)


def curve(model, ids, rate, steps):
    """The losses of so many steps on one document, each before its step."""
    import torch
    adamw = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, betas=(0.9, 0.999), eps=EPS, weight_decay=0)
    losses = []
    for _ in range(steps):
        loss = model(ids, labels=ids).loss
        losses.append(loss.item())
        adamw.zero_grad()
        loss.backward()
        adamw.step()
    return losses


def of_transformers(values, tokens, words, targets, others, rate, steps):
    """others: the targets of adapters where the case has none of its own."""
    import expert_layers
    if isinstance(words, str):
        words = getattr(expert_layers, words)
    import peft
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(values, f)
        config = AutoConfig.from_pretrained(folder)

    def fresh(dtype=torch.float32):
        more = dict(experts_implementation="eager") if words else {}
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager", **more).eval()
        for name, parameter in model.named_parameters():
            own = {name: parameter} if callable(words) else expert_layers.parts(words, name, parameter)
            parameter.data = torch.cat([torch.from_numpy(formula(part, tuple(tensor.shape))) for part, tensor in own.items()], len(own) - 1).to(dtype)
        model.tie_weights()
        return model

    ids = torch.tensor([tokens])
    model = fresh(torch.float64 if words else torch.float32)  # in f32 the gradients of experts are off by up to 2e-5
    out = model(ids, labels=ids)
    out.loss.backward()
    grads, shapes = {}, {}
    for parameter, p in model.named_parameters():  # the length, and the product with a direction
        own = expert_layers.parts(words, parameter, p.grad)
        shapes |= {parameter: list(p.shape)} if callable(words) else {name: list(grad.shape) for name, grad in own.items()}
        for name, grad in own.items():
            grads[name] = [grad.norm().item(), (grad * torch.from_numpy(formula(name + "?", tuple(grad.shape)))).sum().item()]
    # PEFT refuses out_proj of a Mamba, whose weight a fused kernel for GPUs would read past the adapter. There is none here.
    peft.tuners.tuners_utils._check_lora_target_modules_mamba = lambda *given: None
    base = expert_layers.set_apart(words, fresh()) if targets else fresh()
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=targets or others))
    for name, parameter in adapted.named_parameters():
        if ".lora_A." in name:
            own = name.removeprefix("base_model.model.").replace(".default", "")
            parameter.data = torch.from_numpy(expert_layers.of_adapter(words, own, parameter, formula).copy())
    adapted.eval()
    greedy = list(tokens)
    with torch.no_grad():
        for _ in range(8):
            greedy.append(int(model(torch.tensor([greedy])).logits[0, -1].argmax()))
    return dict(logits=out.logits[0, -1].tolist(), loss=out.loss.item(), gradients=grads, full=curve(fresh(), ids, rate, steps),
                lora=curve(adapted, ids, rate, steps), greedy=greedy[len(tokens):], shapes=shapes)


def write_gguf(path, model, values, shapes):
    """As llama.cpp's convert_hf_to_gguf.py does; returns the entries."""
    import gguf
    import numpy
    word = model["word"]
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == word)
    names = gguf.get_tensor_name_map(kind, values.get("num_hidden_layers") or values["n_layer"])
    w = gguf.GGUFWriter(path, word)
    entries = model.get("common", common)(values) | model.get("entries", lambda v: {})(values)
    for key, value in entries.items():
        {float: w.add_float32, int: w.add_uint32, list: w.add_array}[type(value)](f"{word}.{key}", value)
    w.add_tokenizer_model("none")
    for key, data in model.get("tensors", {}).items():
        w.add_tensor(key, numpy.array(data, dtype=numpy.float32))
    for name, shape in shapes.items():
        data = formula(name, shape)
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if model.get("pairs") and f".{part}." in name:
                data = data.reshape(values[heads], 2, shape[0] // values[heads] // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        if model.get("transposed", lambda name: False)(name):
            data = data.T.copy()
        if model.get("experts") == "in_turns":
            import expert_layers
            for part, piece in expert_layers.in_turns(name, data).items():
                if part != name:
                    w.add_tensor(names.get_name(part.replace("sinks.weight", "sinks"), try_suffixes=(".weight", ".bias")) + (
                        ".weight" if "sinks" in part else ""), piece.copy())
            if ".experts." in name or name.endswith(".sinks"):
                continue
        if model.get("plus_one") and name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            data = data + 1
        for part, piece in (model["reshaped"](name, data, values) if "reshaped" in model else {name: data}).items():
            w.add_tensor(names.get_name(part, try_suffixes=(".weight", ".bias")), piece)
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
    return entries


def of_llama(path, tokens):  # a process of its own: torch and xllamacpp do not live in one
    sys.path.append(os.path.join(here, "..", "peers"))
    import llama
    with llama.Model(path, context=256) as model:
        print(json.dumps([float(x) for x in model.logits(tokens)[-1]]))


def write(name, model):
    model, cases = {"word": name, "tokens": TOKENS, "rate": RATE, "steps": STEPS} | model, []
    for title, more, *known in model["cases"]:
        more, targets = dict(more), more.get("targets")
        more.pop("targets", None)
        values = dict(architectures=[model["hf"]], model_type=model.get("type", name)) | model.get("base", BASE) | model["values"] | more
        case = dict(name=title, values=values, **of_transformers(values, model["tokens"], model.get("experts"), targets,
                                                                 model.get("lora", "all-linear"), model["rate"], model["steps"]))
        if targets:
            case["targets"] = targets
        shapes = case.pop("shapes")
        if known == [None]:
            case["windowed"] = True
        elif known != [False]:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.gguf")
                case["entries"] = write_gguf(path, model, values, shapes)
                out = subprocess.run([sys.executable, __file__, "--llama", path, json.dumps(model["tokens"])], check=True, stdout=subprocess.PIPE, text=True).stdout
            case["llama"] = json.loads(out.splitlines()[-1])
            off = max(abs(a - b) for a, b in zip(case["llama"], case["logits"]))
            print(f"{name}, {title}: llama.cpp's logits are off transformers' by {off:.2g}")
        case = json.loads(json.dumps(case), parse_float=lambda text: float(f"{float(text):.8g}"))
        cases.append(json.dumps(case))
    head = dict(word=model["word"], tokens=model["tokens"], rate=model["rate"], eps=EPS, rank=RANK, alpha=ALPHA)
    with open(os.path.join(here, "models", name + ".json"), "w") as f:
        f.write(json.dumps(head)[:-1] + ', "cases": [\n%s\n]}\n' % ",\n".join(cases))


if __name__ == "__main__" and sys.argv[1:2] == ["--llama"]:
    of_llama(sys.argv[2], json.loads(sys.argv[3]))
elif __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        write(name, MODELS[name])
