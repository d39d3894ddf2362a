"""Puts a codec of your own beside those of tqkv, in `tqkv eval`.

Two functions say what the codec gives back: from an array `[tokens, head_dim]` of consecutive tokens of one KV head, the array
after encoding and decoding, and the number of bytes that its codes would take. A program calls `serve` with them,

    from tqkv.yardstick import serve
    serve(keys, values)

and the command runs it, over any model and text, in the table of the other caches:

    tqkv eval --model model.gguf --kv s4 --kv "program=python3 codec.py"
    tqkv eval --model model.gguf --recall --kv tiny --kv "hot=64 sinks=4 program=python3 codec.py"

The first `sinks` (4) and the newest `hot` (64) tokens stay exact, as in the caches beside it. The others come in groups of 32, and every
query sees them as the codec gives them back, so the functions are also asked for the first 1 to 31 tokens of the group that still grows:
once with each token that joins it, for one query, which is once per token, KV head and kind of vector in all, and 16.5 tokens on average.
The answer to a full group is final. A codec by channel has few tokens for its steps in a group that begins, so these come back nearly
exact, and their steps count as bytes as long as the group is not full. Keys have their rotary position. Reconstructions are attended to in
float32, so the figures are those of the codec, and say nothing about its speed.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import numpy as np

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
