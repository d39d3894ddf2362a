"""Measures llama.cpp's own cache types on a model: one row of JSON per type, in the form of `tqkv eval --json`.

usage: cache_types.py MODEL.gguf TEXT CONTEXT WINDOWS TYPE[,TYPE_V] ...      (needs llama-cpp-python and numpy)

The text is split into windows of CONTEXT tokens, without an added first token. Each window is one batch into an empty cache, with
flash attention, so that every token is read as it is stored. The first row is f16, with which the others are compared. The last
line is the time of 64 single tokens after a window.
"""

import json
import sys
import time

import llama_cpp as lc
import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
STEPS = 64
QUIET = lc.llama_log_callback(lambda *_: None)


def load(path):
    lc.llama_log_set(QUIET, None)
    lc.llama_backend_init()
    params = lc.llama_model_default_params()
    # Weights stay as in the file: products of repacked weights (AMX) crashed the process on the machine of MEASURED.md.
    params.use_extra_bufts = False
    model = lc.llama_model_load_from_file(path.encode(), params)
    assert model, path
    return model, lc.llama_model_get_vocab(model)


def tokens_of(vocab, text):
    ids = (lc.llama_token * len(text))()
    count = lc.llama_tokenize(vocab, text, len(text), ids, len(text), False, False)
    assert count >= 0, count
    return ids[:count]


def context_of(model, tokens, kv):
    k, _, v = kv.partition(",")
    params = lc.llama_context_default_params()
    params.n_ctx = tokens + STEPS
    params.n_batch = params.n_ubatch = tokens
    params.n_threads = params.n_threads_batch = 2
    params.type_k, params.type_v = TYPES[k], TYPES[v or k]
    params.flash_attn_type = 1
    context = lc.llama_init_from_model(model, params)
    assert context, kv
    return context


def feed(context, tokens, start):
    batch = lc.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    clock = time.perf_counter()
    assert lc.llama_decode(context, batch) == 0
    seconds = time.perf_counter() - clock
    lc.llama_batch_free(batch)
    return seconds


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(1, keepdims=True))


def main():
    path, text, size, windows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    kinds = ["f16"] + sys.argv[5:]
    model, vocab = load(path)
    tokens = tokens_of(vocab, open(text, "rb").read())
    assert len(tokens) >= size * windows, f"the text has {len(tokens)} tokens"
    contexts = [context_of(model, size, kind) for kind in kinds]
    sums = [{"nll": 0.0, "kl": [], "same": 0, "seconds": 0.0} for _ in kinds]
    for window in range(windows):
        ids = tokens[window * size : (window + 1) * size]
        base = None
        for context, row in zip(contexts, sums):
            lc.llama_memory_clear(lc.llama_get_memory(context), True)
            row["seconds"] += feed(context, ids, 0)
            raw = np.ctypeslib.as_array(lc.llama_get_logits(context), shape=(size, lc.llama_vocab_n_tokens(vocab)))
            base = raw.copy() if base is None else base
            for first in range(0, size, 128):
                own, other = log_softmax(raw[first : first + 128]), log_softmax(base[first : first + 128])
                row["kl"] += list((np.exp(other) * (other - own)).sum(1))
                row["same"] += int((own.argmax(1) == other.argmax(1)).sum())
                last = min(first + 128, size - 1)
                row["nll"] -= own[np.arange(last - first), ids[first + 1 : last + 1]].sum()
    for kind, context, row in zip(kinds, contexts, sums):
        steps = [feed(context, [tokens[i]], size + i) for i in range(STEPS)]
        nll = row["nll"] / (windows * (size - 1))
        print(json.dumps({
            "kv": kind if "," in kind else f"{kind},{kind}",
            "perplexity": float(np.exp(nll)),
            "kl_to_f16": float(np.mean(row["kl"])),
            "kl_p99": float(np.sort(row["kl"])[(len(row["kl"]) * 99 + 99) // 100 - 1]),
            "top1_agreement": row["same"] / len(row["kl"]),
            "prefill_tokens_per_second": windows * size / row["seconds"],
            "tokens_per_second": STEPS / sum(steps),
        }))


main()
