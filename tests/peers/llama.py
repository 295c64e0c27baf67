"""llama.cpp, by the C functions of the library in xllamacpp's wheel. Structures are those of llama.h in the version that
requirements.txt pins: another version may have others, which `open` notices by their defaults."""
import ctypes

import numpy
import xllamacpp

THREADS = 2
F32 = 0  # ggml_type of the KV cache, so that its rounding is in no figure

c = ctypes
library = c.CDLL(xllamacpp.xllamacpp.__file__)


class ModelParameters(c.Structure):
    _fields_ = [("pointers", c.c_void_p * 2), ("gpu_layers", c.c_int32), ("split_mode", c.c_int32), ("rest", c.c_uint8 * 488)]


class ContextParameters(c.Structure):
    _fields_ = [
        ("n_ctx", c.c_uint32), ("n_batch", c.c_uint32), ("n_ubatch", c.c_uint32), ("n_seq_max", c.c_uint32), ("n_rs_seq", c.c_uint32),
        ("n_outputs", c.c_uint32 * 2), ("n_threads", c.c_int32), ("n_threads_batch", c.c_int32), ("kinds", c.c_int32 * 4),
        ("flash_attention", c.c_int32), ("rope", c.c_float * 8), ("callback", c.c_void_p * 2), ("type_k", c.c_int32), ("type_v", c.c_int32),
        ("rest", c.c_uint8 * 384)]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.c_void_p), ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8))]


def function(name, result, *arguments):
    found = getattr(library, "llama_" + name)
    found.restype, found.argtypes = result, arguments
    return found


pointer, text, number = c.c_void_p, c.c_char_p, c.c_int32
default_model = function("model_default_params", ModelParameters)
default_context = function("context_default_params", ContextParameters)
load_model = function("model_load_from_file", pointer, text, ModelParameters)
free_model = function("model_free", None, pointer)
get_vocab = function("model_get_vocab", pointer, pointer)
vocab_size = function("vocab_n_tokens", number, pointer)
tokenize = function("tokenize", number, pointer, text, number, c.POINTER(number), number, c.c_bool, c.c_bool)
init_context = function("init_from_model", pointer, pointer, ContextParameters)
free_context = function("free", None, pointer)
get_memory = function("get_memory", pointer, pointer)
clear_memory = function("memory_clear", None, pointer, c.c_bool)
init_batch = function("batch_init", Batch, number, number, number)
free_batch = function("batch_free", None, Batch)
decode = function("decode", number, pointer, Batch)
get_logits = function("get_logits_ith", c.POINTER(c.c_float), pointer, number)
init_adapter = function("adapter_lora_init", pointer, pointer, text)
set_adapters = function("set_adapters_lora", number, pointer, c.POINTER(pointer), c.c_size_t, c.POINTER(c.c_float))
quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda level, words, data: None)
function("log_set", None, c.c_void_p, c.c_void_p)(c.cast(quiet, c.c_void_p), None)
function("backend_init", None)()


def advance(context, tokens, begin):
    """Runs tokens at positions from `begin`, with the logits of the last alone, as a server does."""
    batch = init_batch(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, begin + i, 1, 0, i == len(tokens) - 1
    if decode(context, batch):
        raise AssertionError("llama_decode failed")
    get_logits(context, len(tokens) - 1)
    free_batch(batch)


class Refused(Exception):
    """llama.cpp does not load the file."""


class Model:
    """A GGUF file under llama.cpp, with a LoRA adapter file if given; a context of manager `with`."""

    def __init__(self, path, adapter=None, context=1024):
        self.model = load_model(str(path).encode(), default_model())
        if not self.model:
            raise Refused(f"llama.cpp does not load {path}")
        self.vocab = get_vocab(self.model)
        self.size = vocab_size(self.vocab)
        wanted = default_context()
        if (wanted.n_ctx, wanted.n_batch, wanted.n_threads, wanted.type_k, wanted.type_v) != (512, 2048, 4, 1, 1):
            raise AssertionError("llama_context_params is not as in llama.py: is xllamacpp the version of requirements.txt?")
        wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = context
        wanted.n_threads = wanted.n_threads_batch = THREADS
        wanted.type_k = wanted.type_v = F32
        wanted.flash_attention = 0
        self.context = init_context(self.model, wanted)
        if adapter:
            loaded = init_adapter(self.model, str(adapter).encode())
            if not loaded:
                raise Refused(f"llama.cpp does not load {adapter}")
            set_adapters(self.context, (pointer * 1)(loaded), 1, (c.c_float * 1)(1.0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        free_context(self.context)
        free_model(self.model)

    def tokens(self, words, special=True):
        raw = words.encode()
        room = len(raw) + 8
        ids = (number * room)()
        return list(ids[:tokenize(self.vocab, raw, len(raw), ids, room, False, special)])

    def run(self, ids, begin):
        """Logits [len(ids), vocab] of ids at positions from `begin`."""
        batch = init_batch(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, begin + i, 1, 0, 1
        if decode(self.context, batch):
            raise AssertionError("llama_decode failed")
        free_batch(batch)
        return numpy.stack([numpy.ctypeslib.as_array(get_logits(self.context, i), (self.size,)) for i in range(len(ids))])

    def logits(self, ids):
        clear_memory(get_memory(self.context), True)
        return self.run(ids, 0)

    def greedy(self, prompt, count):
        """The likeliest `count` tokens after `prompt`, and the logits [count, vocab] that chose them."""
        ids, rows = list(prompt), [self.logits(prompt)[-1]]
        while len(rows) < count:
            ids.append(int(rows[-1].argmax()))
            rows.append(self.run(ids[-1:], len(ids) - 1)[-1])
        return ids[len(prompt):] + [int(rows[-1].argmax())], numpy.stack(rows)
