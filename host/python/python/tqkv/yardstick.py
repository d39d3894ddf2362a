"""Compares a codec of your own with those of tqkv, in `tqkv eval`.

Two functions say what the codec gives back: from an array `[tokens, head_dim]` of consecutive tokens of one KV head, the array
after encoding and decoding, and the number of bytes that its codes would take. A program calls `serve` with them,

    from tqkv.yardstick import serve
    serve(keys, values)

and the command runs it, over any model and text, in the table of the other caches:

    tqkv eval --model model.gguf --kv s4 --kv "program=python3 codec.py"
    tqkv eval --model model.gguf --recall --kv tiny --kv "hot=64 sinks=4 program=python3 codec.py"

The first `sinks` (4) and the newest `hot` (64) tokens stay exact, as in the caches that it is compared with. The others come in groups of 32, and every
query sees them as the codec gives them back, so the functions are also asked for the first 1 to 31 tokens of the group that still grows:
once with each token that joins it, for one query, which is once per token, KV head and kind of vector in all, and 16.5 tokens on average.
The answer to a full group is final. A codec by channel has few tokens for its steps in a group that begins, so these come back nearly
exact, and their steps count as bytes as long as the group is not full. Keys have their rotary position. Reconstructions are attended to in
float32, so the figures are those of the codec, and say nothing about its speed.

`lm_eval_model` and `kvpress_pipeline` are for the opposite: the tasks of others over a model with a `TqkvCache`. A line gives a model that
lm-eval drives, or a pipeline that answers questions as kvpress asks them:

    lm_eval.simple_evaluate(lm_eval_model(model, tokenizer, "t4,t2"), tasks=["gsm8k"])
    kvpress_pipeline(model, tokenizer, "t4,t2")(text, questions=["Who wrote it?"])
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import numpy as np

from ._native import TqkvError

Coded = Callable[[np.ndarray], "tuple[Any, int]"]
"""From `[tokens, head_dim]` float32 to the array after encoding and decoding, and the bytes of the codes."""


def serve(keys: Coded, values: Coded | None = None) -> None:
    """Answers the requests of `tqkv eval`, of 1 to 32 tokens, until it ends. Without `values`, they have the codec of the keys.

    What the functions print goes to standard error, because standard output has the answers. host/reference/src/program.rs has the form
    of requests."""
    asks, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    codecs = {b"keys": keys, b"values": values or keys}
    for line in iter(asks.readline, b""):
        side, _layer, _head, *shape = line.split()
        tokens, dim = map(int, shape)
        given = np.frombuffer(asks.read(4 * tokens * dim), "<f4").reshape(tokens, dim)
        back, count = codecs[side](given.copy())
        back = np.asarray(back, "<f4")
        if back.shape != given.shape:
            raise ValueError(f"{side.decode()} of the shape {back.shape} are not valid: expected {given.shape}, as they were given")
        answers.write(b"%d\n" % count + back.tobytes())
        answers.flush()


def lm_eval_model(model: Any, tokenizer: Any, kv: str = "t4,t2", *, step: int = 32, cache: dict[str, Any] | None = None, **options: Any) -> Any:
    """A model of Transformers for `lm_eval.simple_evaluate`, with a fresh `TqkvCache` for each batch of requests.

    lm-eval scores a text (`loglikelihood`, multiple choice, perplexity) in one forward pass without a cache, and a prompt that is one pass
    reads its own keys and values before they are coded, so a codec would not be seen. Here all tokens come in passes of `step`, and each
    reads the tokens of earlier passes as the cache has them: as codes, but for the first 4 and the newest 64. Prompts of `generate_until` come
    in the same way, and generated tokens one at a time. With `kv="f16"` the figures are those of the model itself.

    `cache` has further arguments of `TqkvCache`, and `options` are those of lm-eval's `HFLM`, such as `batch_size`. The model's attention
    becomes "tqkv"."""
    from ._lm_eval import CodedLM

    if step < 1:
        raise TqkvError(f"step={step} is not valid: expected 1 or more tokens")
    return CodedLM(model, _caches(model, kv, cache), step, tokenizer=tokenizer, **options)


def kvpress_pipeline(model: Any, tokenizer: Any, kv: str = "t4,t2", *, cache: dict[str, Any] | None = None) -> Any:
    """kvpress' pipeline of contexts and questions, with a fresh `TqkvCache` for each context.

    As there, the context is a prompt that reads its own keys and values before they are coded. Questions and answers read it as codes, as
    after a hit of a prefix cache. A press drops tokens, which this cache does not do, so none is accepted. `cache` has further arguments of
    `TqkvCache`. The model's attention becomes "tqkv"."""
    from ._kvpress import CodedPipeline

    return CodedPipeline(model, tokenizer, _caches(model, kv, cache))


def _caches(model: Any, kv: str, options: dict[str, Any] | None) -> Callable[[], Any]:
    """Makes caches of the model. What no cache can be is refused before a task begins."""
    from .transformers import TqkvCache

    def new_cache() -> TqkvCache:
        return TqkvCache(model.config, kv=kv, **options or {})

    new_cache()
    model.set_attn_implementation("tqkv")
    return new_cache
