"""Sequences in numbered slots attend as each of them would alone."""

import numpy as np
import pytest
import tqkv

HEADS, KV_HEADS, DIM = 4, 2, 64
ROPE = tqkv.Rope.of(1e4, DIM)


def store(kv="t4,t3", slots=512, **options):
    return tqkv.SlotCache(1, HEADS, KV_HEADS, DIM, kv, slots=slots, **options)


def rows(rng, n, heads=KV_HEADS):
    return rng.standard_normal((n, heads, DIM), dtype=np.float32)


def attention(q, k, v, bias=0.0):
    """Attention of one query, in float64."""
    out = []
    for head, query in enumerate(q.astype(np.float64)):
        logits = k[:, head * KV_HEADS // HEADS].astype(np.float64) @ query / DIM**0.5 + bias
        weights = np.exp(logits - logits.max())
        out.append(weights / weights.sum() @ v[:, head * KV_HEADS // HEADS])
    return np.array(out)


def near(out, exact, error):
    assert np.linalg.norm(out - exact) < error * np.linalg.norm(exact)


@pytest.mark.parametrize("kv, error", [("f16", 0.002), ("i8", 0.02), ("t4,t3", 0.2)])
def test_two_sequences_in_mixed_slots_attend_alone(rng, kv, error):
    cache, order = store(kv), rng.permutation(512)
    slots = [order[:300], order[300:500]]
    data = [(rows(rng, len(own)), rows(rng, len(own))) for own in slots]
    mask = cache.mask()
    for own, (k, v) in zip(slots, data):
        cache.write(0, own, range(len(own)), k, v)
        mask.causal(own)
    assert len(mask) == 2
    q = rows(rng, 2, HEADS)
    cache.attend(0, q, mask)
    # Rows that left the exact window are codes now.
    out = cache.attend(0, q, mask)
    for query, result, (k, v) in zip(q, out, data):
        near(result, attention(query, k, v), error)


def test_a_prompt_is_causal_and_a_prefix_is_shared(rng):
    cache, k, v = store("f16"), rows(rng, 30), rows(rng, 30)
    cache.write(0, range(30), range(30), k, v)
    mask = cache.mask()
    mask.causal(range(20), queries=20)
    mask.causal(list(range(10)) + list(range(20, 30)), queries=10)
    q = rows(rng, 30, HEADS)
    out = cache.attend(0, q, mask)
    near(out[4], attention(q[4], k[:5], v[:5]), 0.002)
    seen = np.r_[0:10, 20:24]
    near(out[23], attention(q[23], k[seen], v[seen]), 0.002)


def test_slots_are_written_again_copied_forgotten_and_cleared(rng):
    cache, k, v, q = store(), rows(rng, 400), rows(rng, 400), rows(rng, 1, HEADS)
    cache.write(0, range(400), range(400), k, v)
    mask = cache.mask()
    mask.causal(range(400))
    before = cache.attend(0, q, mask)
    full = cache.allocated_bytes
    cache.copy([5, 300], [510, 511])
    np.testing.assert_array_equal(cache.read(0, [510, 511])[0], cache.read(0, [5, 300])[0])
    cache.forget(range(100, 400))
    assert cache.allocated_bytes < full
    assert not cache.read(0, [100])[1].any()
    cache.write(0, range(100, 400), range(100, 400), k[100:], v[100:])
    near(cache.attend(0, q, mask), before, 0.2)
    cache.clear()
    assert not cache.read(0, range(512))[0].any()


def test_a_state_is_read_and_restored_elsewhere(rng):
    first, second = store(slots=300), store(slots=400)
    k, v, q = rows(rng, 300), rows(rng, 300), rows(rng, 1, HEADS)
    first.write(0, range(300), range(300), k, v)
    first.encode(0)
    mask = first.mask()
    mask.causal(range(300))
    out = first.attend(0, q, mask)
    target = np.arange(399, 99, -1)
    second.restore(0, target, range(300), *first.read(0, range(300)))
    other = second.mask()
    other.causal(target)
    # Weights are rounded page by page, and the slots of a page hold other tokens here.
    near(second.attend(0, q, other), out, 0.03)


def turned(k, positions, rope):
    """Keys after a move by positions, in float64."""
    out, pairs = k.astype(np.float64), len(rope.frequencies)
    first = np.arange(pairs) * (1 if rope.kind == "half" else 2) + rope.first
    second = first + (pairs if rope.kind == "half" else 1)
    turn = np.exp(1j * positions * np.array(rope.frequencies)) * (out[..., first] + 1j * out[..., second])
    out[..., first], out[..., second] = turn.real, turn.imag
    return out


@pytest.mark.parametrize("rope", [tqkv.Rope.of(1e4, DIM), tqkv.Rope.of(1e4, DIM, "interleaved"), tqkv.Rope.of(1e4, 16, first=48)])
@pytest.mark.parametrize("kv, error", [("f16", 0.002), ("i8 hot=16", 0.02)])
def test_tokens_are_moved_without_a_new_code(rng, kv, error, rope):
    cache, k, v, q = store(kv), rows(rng, 400), rows(rng, 400), rows(rng, 1, HEADS)
    cache.write(0, range(400), range(400), k, v)
    cache.encode(0)
    for _ in range(3):
        cache.shift(0, np.arange(100, 400), -64, rope)
    cache.shift(0, range(100, 400), 64, rope)
    k = np.concatenate([k[:100], turned(k[100:], -128, rope)])
    mask = cache.mask()
    mask.see(range(400))
    near(cache.attend(0, q, mask), attention(q[0], k, v), error)
    near(cache.read(0, range(400))[0].astype(np.float64), k, error)


def test_biases_and_streams(rng):
    cache, k, v, q = store("f16", slots=20, streams=2), rows(rng, 20), rows(rng, 20), rows(rng, 1, HEADS)
    assert (cache.slots, cache.streams) == (20, 2)
    cache.write(0, range(20, 40), range(20), k, v)
    mask = cache.mask(1)
    bias = np.linspace(-2, 0, 20)
    mask.see(range(20), bias)
    near(cache.attend(0, q, mask), attention(q[0], k, v, bias), 0.002)
    mask.clear()
    mask.see(range(20), [0.0] * 10 + [-np.inf] * 10)
    near(cache.attend(0, q, mask), attention(q[0], k[:10], v[:10]), 0.002)
    empty = cache.mask(0)
    empty.see([])
    assert not cache.attend(0, q, empty).any()


def test_tensors_and_their_types(rng):
    torch = pytest.importorskip("torch")
    cache = store("s4")
    k, v, q = (torch.from_numpy(x).bfloat16() for x in (rows(rng, 9), rows(rng, 9), rows(rng, 1, HEADS)))
    cache.write(0, torch.arange(9), torch.arange(9), k, v)
    mask = cache.mask()
    mask.causal(torch.arange(9))
    out = cache.attend(0, q, mask)
    assert out.dtype == torch.float32
    near(out.numpy(), attention(q[0].float().numpy(), k.float().numpy(), v.float().numpy()), 0.002)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda c, k, q: c.write(0, [0, 512], [0, 1], k, k), "512"),
        (lambda c, k, q: c.write(0, [0, -1], [0, 1], k, k), "slots with -1 is not valid: expected numbers from 0 on"),
        (lambda c, k, q: c.write(0, [0.0, 1.0], [0, 1], k, k), "slots of the type list is not valid"),
        (lambda c, k, q: c.write(0, "01", [0, 1], k, k), "slots of the type str is not valid"),
        (lambda c, k, q: c.write(0, [0, 1], [0], k, k), "positions"),
        (lambda c, k, q: c.write(1, [0, 1], [0, 1], k, k), "layer"),
        (lambda c, k, q: c.write(0, [0], [0], k, k), r"k of the shape \[2, 2, 64\] is not valid: expected \[1, 2, 64\]"),
        (lambda c, k, q: c.write(0, [0, 1], [0, 1], k * np.nan, k), "key"),
        (lambda c, k, q: c.attend(0, q, None), "mask of the type NoneType is not valid"),
        (lambda c, k, q: c.attend(0, q, c.mask()), "expected"),
        (lambda c, k, q: c.attend(0, q, tqkv.SlotCache(1, 4, 2, 64, slots=9).mask()), "expected"),
        (lambda c, k, q: c.mask(1), "stream 1 is out of range: the cache has 1"),
        (lambda c, k, q: c.mask().causal([1], queries=2), "slots"),
        (lambda c, k, q: c.mask().see([1, 2], [0.5]), r"biases of the shape \[1\]"),
        (lambda c, k, q: c.mask().see([1], [np.nan]), "NaN"),
        (lambda c, k, q: c.read(0, [512]), "512"),
        (lambda c, k, q: c.read(3, [0]), "layer"),
        (lambda c, k, q: c.restore(0, [0, 1], [0, 1], k, k), "expected float16"),
        (lambda c, k, q: c.shift(0, [512], 1, ROPE), "512"),
        (lambda c, k, q: c.shift(0, [-3], 1, ROPE), "slots with -3 is not valid"),
        (lambda c, k, q: c.shift(3, [3], 1, ROPE), "layer 3 is out of range"),
        (lambda c, k, q: c.shift(0, [3], 1.5, ROPE), "positions 1.5 is not valid: expected a whole number"),
        (lambda c, k, q: c.shift(0, [3], 1 << 31, ROPE), "positions 2147483648 is not valid"),
        (lambda c, k, q: c.shift(0, [3], 1, None), "rope of the type NoneType is not valid: expected a tqkv.Rope"),
        (lambda c, k, q: c.shift(0, [3], 1, tqkv.Rope((1.0,), "all")), "'all'"),
        (lambda c, k, q: c.shift(0, [3], 1, tqkv.Rope((np.nan,))), "frequency NaN: expected a finite one"),
        (lambda c, k, q: c.shift(0, [3], 1, tqkv.Rope.of(1e4, 66)), "33 pairs from value 0 on: expected at most the head dim, 64"),
        (lambda c, k, q: c.shift(0, [3], 1, tqkv.Rope((1.0,), first=63)), "1 pairs from value 63 on"),
        (lambda c, k, q: c.shift(0, [3], 1, tqkv.Rope((1.0,), first=-1)), "first coordinate of a RoPE -1 is not valid"),
        (lambda c, k, q: c.shift(0, [3], 1, tqkv.Rope((1.0,), first=(1 << 64) - 1)), "expected at most the head dim"),
        (lambda c, k, q: store("s4 ring=100"), "ring"),
        (lambda c, k, q: store(slots=0), "slots"),
        (lambda c, k, q: store(kv=4), "kv 4 is not valid"),
        (lambda c, k, q: tqkv.SlotMask(None), "SlotCache.mask"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(rng, call, text):
    cache, k = store(), rows(rng, 2)
    cache.write(0, [3, 4], [0, 1], k, k)
    before = [part.copy() for part in cache.read(0, range(512))]
    with pytest.raises(tqkv.TqkvError, match=text):
        call(cache, k, rows(rng, 1, HEADS))
    for old, new in zip(before, cache.read(0, range(512))):
        np.testing.assert_array_equal(old, new)
