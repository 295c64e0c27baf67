"""KL divergence of qeng's and of llama.cpp's logits from exact arithmetic on the weights of a file, over many windows of a text: what
tests/peers/types_check.py asks of 256 tokens, with chance averaged out.

    QENG_PEERS_WORK=DIR PYTHON tests/campaigns/kl_of_types.py TEXT WINDOWS [TYPE...]

PYTHON: that of tests/peers/environment. Windows have 1,024 tokens. A row a type: mean KL of each engine, in nats, and the mean of
their differences with its standard error, in percent of llama.cpp's KL.
"""
import pathlib
import sys

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import llama  # noqa: E402
import qeng  # noqa: E402
from peers import WORK, divergences, row, smollm2  # noqa: E402

WINDOW = 1024
COARSE = {"q1_0", "q2_0", "tq1_0", "tq2_0", "pq2_0", "ptq1_0", "f32", "f16", "bf16"}  # nothing of the model is left, or nothing is rounded to 8 bits

text, windows, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
ids = qeng.answers(smollm2(), texts=[pathlib.Path(text).read_text(encoding="utf-8")[:windows * WINDOW * 8]])["tokens"][0]
pieces = [ids[i * WINDOW:(i + 1) * WINDOW] for i in range(windows)]
row("type", "tokens", "KL: qeng", "llama.cpp", "difference, %", "its error, %")
for name in ["original"] + (names or [each for each in qeng.run("tests/peers/types.lua").split() if each not in COARSE]):
    path = smollm2() if name == "original" else qeng.quantized(smollm2(), WORK / "model.gguf", name)
    decoded = qeng.quantized(path, WORK / "decoded.gguf", "f32")
    mine, its = [], []
    with llama.Model(path) as model:
        for piece in pieces:
            exact = qeng.logits(decoded, piece)
            mine.append(divergences(exact, qeng.logits(path, piece)))
            its.append(divergences(exact, model.logits(piece)))
    mine, its = numpy.concatenate(mine), numpy.concatenate(its)
    apart, unit = mine - its, its.mean() / 100
    row(name, len(mine), f"{mine.mean():.3e}", f"{its.mean():.3e}", f"{apart.mean() / unit:+.1f}", f"{apart.std() / len(apart) ** 0.5 / unit:.1f}")
