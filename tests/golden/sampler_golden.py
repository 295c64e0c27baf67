"""Writes sampler_golden.json: what llama.cpp's samplers leave of fixed logits, for tests/lua/sampler_test.lua.

    python sampler_golden.py

Each case has logits, the tokens before, the options of q.sampler, and what the chain of common/sampling.cpp (in its default order)
leaves: {token: probability}; of mirostat, for each step, that and the token that llama.cpp drew. Needs llama_cpp, and small_llama.gguf
for a vocabulary, of which the sequence breakers of DRY are.
"""
import ctypes, json, math, os, random
import llama_cpp as L

HERE = os.path.dirname(os.path.abspath(__file__))
BREAKERS = ["\n", ":", '"', "*"]


def array(logits):
    data = (L.llama_token_data * len(logits))(*[L.llama_token_data(i, z, 0.0) for i, z in enumerate(logits)])
    return data, L.llama_token_data_array(data, len(logits), -1, False)


def left(cur):
    """What is left, with the probabilities of its logits as they are."""
    rows = [(cur.data[i].id, cur.data[i].logit) for i in range(cur.size) if cur.data[i].logit > -math.inf]
    top = max(z for _, z in rows)
    total = sum(math.exp(z - top) for _, z in rows)
    return {i: round(math.exp(z - top) / total, 8) for i, z in rows if z - top > -80}  # qeng leaves out what is under 1e-37


def apply(sampler, cur): L.llama_sampler_apply(sampler, ctypes.byref(cur))


def chain(vocab, o, history):
    parts = []
    if "dry_multiplier" in o:
        words = o.get("dry_sequence_breakers", [])
        texts = (ctypes.c_char_p * max(1, len(words)))(*[w.encode() for w in words])
        parts.append(L.llama_sampler_init_dry(vocab, o["dry_multiplier"], o.get("dry_base", 1.75), o.get("dry_allowed_length", 2),
                                              o.get("dry_penalty_last_n", 4096), texts, len(words)))
    if "top_n_sigma" in o: parts.append(L.llama_sampler_init_top_n_sigma(o["top_n_sigma"]))
    if "top_k" in o: parts.append(L.llama_sampler_init_top_k(o["top_k"]))
    if "top_p" in o: parts.append(L.llama_sampler_init_top_p(o["top_p"], 0))
    if "min_p" in o: parts.append(L.llama_sampler_init_min_p(o["min_p"], 0))
    if "xtc_probability" in o: parts.append(L.llama_sampler_init_xtc(o["xtc_probability"], o["xtc_threshold"], 0, 1))
    parts.append(L.llama_sampler_init_temp(o.get("temperature", 1)))
    for part in parts:
        for token in history: L.llama_sampler_accept(part, token)
    return parts


def main():
    model = L.llama_model_load_from_file(os.path.join(HERE, "small_llama.gguf").encode(), L.llama_model_default_params())
    vocab = L.llama_model_get_vocab(model)
    count = 60  # of the vocabulary's tokens
    assert count < L.llama_vocab_n_tokens(vocab)
    r = random.Random(1)
    logits = lambda scale, n=count: [ctypes.c_float(round(r.gauss(0, scale), 3)).value for _ in range(n)]
    cases = []

    def case(o, scale=2.0, history=()):
        z = logits(scale)
        data, cur = array(z)
        for part in chain(vocab, o, history): apply(part, cur)
        cases.append({"options": o, "logits": z, "history": list(history), "left": left(cur)})

    for n in (0.5, 1, 2): case({"top_n_sigma": n})
    case({"top_n_sigma": 1.5, "temperature": 0.7})
    case({"top_n_sigma": 1.5, "top_k": 5})
    case({"top_n_sigma": 2.5, "top_p": 0.8})
    for threshold in (0.05, 0.1, 0.2, 0.5, 0.6): case({"xtc_probability": 1, "xtc_threshold": threshold})
    case({"xtc_probability": 1, "xtc_threshold": 0.08, "temperature": 0.5})
    case({"xtc_probability": 1, "xtc_threshold": 0.08, "temperature": 1.7})
    case({"xtc_probability": 1, "xtc_threshold": 0.1, "min_p": 0.2})
    case({"xtc_probability": 1, "xtc_threshold": 0.05, "top_k": 6, "top_p": 0.9, "min_p": 0.05})
    some = [5, 9, 7, 3, 5, 9, 7, 4, 8, 5, 9, 7]
    case({"dry_multiplier": 0.8}, history=some)
    case({"dry_multiplier": 0.8, "dry_allowed_length": 4}, history=some)
    case({"dry_multiplier": 1.3, "dry_base": 3, "dry_allowed_length": 1, "temperature": 0.6}, history=some)
    case({"dry_multiplier": 0.8, "dry_penalty_last_n": 7}, history=some)
    case({"dry_multiplier": 0.8, "dry_allowed_length": 1, "dry_penalty_last_n": 5}, history=[7] * 30)
    case({"dry_multiplier": 0.8, "dry_base": 1}, history=[7] * 30)
    for seed in range(12):  # tokens that repeat often, under breakers that this vocabulary has
        words = [["\n"], ["!", "12"], ["0"], BREAKERS][seed % 4]
        tokens = [r.choice([7, 8, 9, 13, 36, 37, 45, 51, 52, 53]) for _ in range(60)]
        case({"dry_multiplier": 0.5, "dry_allowed_length": r.randrange(0, 4), "dry_sequence_breakers": words}, history=tokens + tokens[:r.randrange(2, 20)])

    for version in (1, 2):
        for tau, eta, temperature, scale in ((2, 0.1, 1, 2), (3, 0.3, 0.8, 2), (1, 0.2, 1, 3), (4, 0.1, 1.3, 4)):
            o = {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": eta, "temperature": temperature}
            sampler = (L.llama_sampler_init_mirostat(count, 7, tau, eta, 100) if version == 1 else L.llama_sampler_init_mirostat_v2(7, tau, eta))
            steps = []
            for _ in range(12):
                z = logits(scale)
                data, cur = array(z)
                apply(L.llama_sampler_init_temp(temperature), cur)
                apply(sampler, cur)
                steps.append({"logits": z, "left": left(cur), "drawn": cur.data[cur.selected].id})
            cases.append({"options": o, "history": [], "steps": steps})
    with open(os.path.join(HERE, "sampler_golden.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


if __name__ == "__main__": main()
