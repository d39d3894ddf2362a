"""The task of every engine: attention of one new token over one layer, 32 query heads on 8 KV heads, head dim 128."""

import json
import sys
import time

import numpy as np

HEADS, KV_HEADS, DIM = 32, 8, 128


def data(tokens, seed, outliers):
    """Gaussian queries, keys and values, `[heads, dim]` and `[kv_heads, tokens, dim]`. With `outliers`, four channels of the keys
    and four of the values of each KV head are ten times larger, like channels of real keys."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((HEADS, DIM), dtype=np.float32)
    k, v = (random.standard_normal((KV_HEADS, tokens, DIM), dtype=np.float32) for _ in range(2))
    if outliers:
        for rows in (*k, *v):
            rows[:, random.choice(DIM, 4, replace=False)] *= 10
    return q, k, v


def exact(q, k, v):
    """Attention in f64."""
    group = HEADS // KV_HEADS
    logits = np.einsum("hgd,hnd->hgn", q.reshape(KV_HEADS, group, DIM).astype(float), k.astype(float)) / DIM**0.5
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hgn,hnd->hgd", weights, v.astype(float)).reshape(HEADS, DIM)


def timed(step, seconds):
    """Nanoseconds of each call, for at least 30 calls."""
    times, end = [], time.perf_counter() + seconds
    for _ in range(3):
        step()
    while len(times) < 30 or time.perf_counter() < end:
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return times


def main(engine):
    """`ENGINE.py FORMAT TOKENS THREADS SECONDS SEED ..` prints a row of JSON. `engine(format, q, k, v, threads)` returns two things: a
    function that does the step and returns the output `[heads, dim]`, and the bytes per token and KV head."""
    kind, tokens, threads, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    row = {"format": kind, "tokens": tokens, "threads": threads, "error": [], "error_outliers": []}
    for seed in map(int, sys.argv[5:]):
        for outliers in (False, True):
            q, k, v = data(4096, seed, outliers)
            step, _ = engine(kind, q, k, v, threads)
            true = exact(q, k, v)
            error = np.linalg.norm(step().reshape(HEADS, DIM) - true) / np.linalg.norm(true)
            row["error_outliers" if outliers else "error"].append(float(error))
    if seconds > 0:
        step, row["bytes"] = engine(kind, *data(tokens, 1, False), threads)
        times = timed(step, seconds)
        row["ns"] = min(times) / (tokens * KV_HEADS)
        row["ns_median"] = float(np.median(times)) / (tokens * KV_HEADS)
    print(json.dumps(row))
