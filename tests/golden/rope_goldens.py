"""Writes rope.json beside this file: rotary frequencies and attention factors as transformers computes them.

    python tests/golden/rope_goldens.py        (needs torch and transformers; rope.json was made with transformers 5.24.0)
"""
import json
import pathlib

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [  # rope parameters, head_dim, max_position_embeddings, sequence length or None
    (dict(rope_type="default", rope_theta=10000.0), 64, 2048, None),
    (dict(rope_type="default", rope_theta=1000000.0), 80, 32768, None),
    (dict(rope_type="linear", rope_theta=10000.0, factor=4.0), 64, 8192, None),
    (dict(rope_type="linear", rope_theta=10000.0, factor=2.0, partial_rotary_factor=0.25), 80, 2048, None),
    (dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0), 64, 2048, None),
    (dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0), 128, 2048, 5000),
    (dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=32768), 128, 131072, None),
    (dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1,
          mscale=1.0, mscale_all_dim=0.707), 64, 163840, None),
    (dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, original_max_position_embeddings=4096, truncate=False), 64, 131072, None),
    (dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=2048, attention_factor=1.5,
          beta_fast=16, beta_slow=2), 96, 16384, None),
    (dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position_embeddings=8192), 128, 131072, None),
    (dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
          original_max_position_embeddings=8192), 64, 131072, None),
    *((dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=4096, partial_rotary_factor=0.75,
            factor=32.0, short_factor=[1 + i / 40 for i in range(12)], long_factor=[1 + i * i / 3 for i in range(12)]),
       32, 131072, length) for length in (4096, 4097)),
]

cases = []
for parameters, head_dim, positions, sequence in CASES:
    config = LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, num_key_value_heads=2, head_dim=head_dim,
                         max_position_embeddings=positions, rope_parameters=dict(parameters))
    if parameters["rope_type"] == "default":
        inv_freq, factor = LlamaRotaryEmbedding(config).inv_freq, 1.0
    else:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=sequence)
    cases.append(dict(parameters=parameters, head_dim=head_dim, max_position_embeddings=positions, sequence=sequence or 0,
                      attention_factor=float(factor), inv_freq=[float(f"{x:.9g}") for x in inv_freq.tolist()]))

target = pathlib.Path(__file__).with_name("rope.json")
target.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
