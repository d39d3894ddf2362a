"""Attention is exact without compression, and nearly exact with it."""

import copy
import os
import pickle

import numpy as np
import pytest
import tqkv
from tqkv import _native

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 64


def cache(kv="t4,t3", **options):
    return tqkv.KvCache(LAYERS, HEADS, KV_HEADS, DIM, kv, **options)


def tokens(rng, n, heads=KV_HEADS):
    return rng.standard_normal((n, heads, DIM), dtype=np.float32)


def attention(q, k, v):
    """Attention of one query, in float64."""
    out = []
    for head, query in enumerate(q.astype(np.float64)):
        logits = k[:, head * KV_HEADS // HEADS].astype(np.float64) @ query / DIM**0.5
        weights = np.exp(logits - logits.max())
        out.append(weights / weights.sum() @ v[:, head * KV_HEADS // HEADS])
    return np.array(out)


@pytest.mark.parametrize("kv, error", [("f16", 0.002), ("i8", 0.01), ("t4,t3", 0.2)])
def test_attention_is_near_the_exact_one(rng, kv, error):
    held = cache(kv)
    k, v, q = tokens(rng, 700), tokens(rng, 700), tokens(rng, 1, HEADS)[0]
    for layer in range(LAYERS):
        held.append(layer, k[:600], v[:600])
        held.append(layer, k[600:], v[600:])
    exact = attention(q, k, v)
    out = held.attend(1, q)
    assert np.linalg.norm(out - exact) < error * np.linalg.norm(exact)
    assert len(held) == 700


def test_a_child_that_drops_a_cache_leaves_its_parent_the_spill_file(rng, tmp_path):
    held = cache(sinks=0, hot=0, spill=(128, tmp_path))
    k, v, q = tokens(rng, 600), tokens(rng, 600), tokens(rng, 1, HEADS)[0]
    held.append(0, k, v)
    before = held.attend(0, q)
    child = os.fork()
    if child == 0:
        del held
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(held.attend(0, q), before)


def test_a_chunk_is_its_tokens_one_by_one(rng):
    whole, single = cache("i8"), cache("i8")
    q, k, v = tokens(rng, 200, HEADS), tokens(rng, 200), tokens(rng, 200)
    out = whole.attend_prefill(0, q, k, v)
    for i in range(200):
        single.append(0, k[i : i + 1], v[i : i + 1])
        np.testing.assert_allclose(single.attend(0, q[i]), out[i], rtol=0.05, atol=0.02)


def test_tensors_go_in_and_out(rng, torch):
    held = cache("f16", hot=8)
    k, v, q = (torch.from_numpy(tokens(rng, 90, heads)) for heads in (KV_HEADS, KV_HEADS, HEADS))
    held.append(0, k.bfloat16(), v.half())
    out = held.attend(0, q[0].bfloat16())
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    keys = held.keys(0)
    assert keys.shape == (KV_HEADS, 90, DIM)
    assert (torch.from_numpy(keys).transpose(0, 1) == k.bfloat16().half().float()).all()
    assert (held.values(0, None, 5, 9, np.float16) == v.half().numpy()[5:9].transpose(1, 0, 2)).all()
    assert (held.keys(0, 1, 5, 9) == keys[1, 5:9]).all() and held.values(0, 0).shape == (90, DIM)
    scores = held.scores(0, 3, q[0, 3])
    np.testing.assert_allclose(scores, (k[:, 1].bfloat16().float() @ q[0, 3]) / 8, rtol=1e-3, atol=1e-3)


def test_forks_part_and_rollbacks_come_back(rng):
    held = cache("t4,t3")
    k, v, q = tokens(rng, 400), tokens(rng, 400), tokens(rng, 1, HEADS)[0]
    held.append(0, k[:300], v[:300])
    before = held.attend(0, q)
    other = held.fork()
    assert held.stats()["shared_bytes"] > 0
    other.append(0, k[300:], v[300:])
    assert (len(held), len(other)) == (300, 400)
    assert (held.attend(0, q) == before).all()
    assert (other.attend(0, q) != before).any()
    other.truncate(300)
    # Tokens that left the hot window stay encoded, so results are near, not equal.
    assert np.linalg.norm(other.attend(0, q) - before) < 0.1 * np.linalg.norm(before)
    held.reset()
    assert len(held) == 0 and len(other) == 300


def test_snapshots_go_on_to_the_bit(rng, tmp_path):
    held, again, file = cache(), cache(), cache()
    k, v, q = tokens(rng, 300), tokens(rng, 300), tokens(rng, 1, HEADS)[0]
    for layer in range(LAYERS):
        held.append(layer, k[:250], v[:250])
    again.restore(held.snapshot())
    held.save(tmp_path / "cache.tqs")
    file.restore_from(str(tmp_path / "cache.tqs"))
    loaded = tqkv.KvCache.load(tmp_path / "cache.tqs", max_bytes=1 << 24)
    assert loaded.layer_codecs == held.layer_codecs and len(loaded) == 250
    with pytest.raises(tqkv.TqkvError, match="bytes"):
        tqkv.KvCache.load(tmp_path / "cache.tqs", max_bytes=100)
    for one in (held, again, file, loaded):
        one.append(0, k[250:], v[250:])
    assert (again.attend(0, q) == held.attend(0, q)).all()
    assert (file.attend(0, q) == held.attend(0, q)).all()
    assert (loaded.attend(0, q) == held.attend(0, q)).all()
    with pytest.raises(tqkv.TqkvError, match="snapshot: of a cache with another"):
        cache("s4").restore(held.snapshot())
    with pytest.raises(tqkv.TqkvError, match="nowhere"):
        held.restore_from(tmp_path / "nowhere")


def test_every_option_arrives(rng, tmp_path):
    k, v, q = tokens(rng, 600), tokens(rng, 600), tokens(rng, 1, HEADS)[0]
    seen = {}
    for name, options in {
        "plain": {},
        "sinks": {"sinks": 0},
        "hot": {"hot": 128},
        "layers": {"layers": ["s4", "f16"]},
        "windows": {"windows": [200, None]},
        "sliding_window": {"sliding_window": 200},
        "ring": {"ring": 200},
        "cold": {"cold": [(128, "t2,t1")]},
        "spill": {"spill": (128, tmp_path)},
        "centring": {"centring": "on"},
        "arithmetic": {"arithmetic": "f32"},
        "seed": {"seed": 3},
        "scale_mode": {"scale_mode": "raw"},
        "effort": {"effort": "best"},
        "scale": {"scale": 0.3},
        "soft_cap": {"soft_cap": 2.0},
        "sink_logits": {"sink_logits": np.ones((LAYERS, HEADS))},
    }.items():
        held = cache("t4,t3", **options)
        held.append(0, k, v)
        seen[name] = (held.attend(0, q), held.stats())
    plain, stats = seen.pop("plain")
    assert seen.pop("spill")[1]["spilled_bytes"] > 0
    for name, (out, _) in seen.items():
        assert (out != plain).any(), name
    assert stats["sinks"] == 4 and stats["warm"] > 500
    assert (seen["ring"][0] == seen["sliding_window"][0]).all()
    assert seen["windows"][1]["evicted"] > 0 and seen["cold"][1]["cold"] > 0
    narrow = tqkv.KvCache(1, 2, 2, 64, "f16", value_dim=32)
    narrow.append(0, k, v[..., :32])
    assert narrow.attend(0, q[:2]).shape == (2, 32)
    assert all(head["key_error"] < 0.02 for head in held.head_stats())


def test_stats_say_which_heads_have_a_map(rng):
    held = cache("s4")
    k = tokens(rng, 200)
    k[:, 1, [5, 5 + DIM // 2]] *= 60  # One pair of KV head 1 has nearly all of its energy.
    held.append(0, k, k)
    assert held.stats()["mapped_heads"] == 1
    assert [head["is_mapped"] for head in held.head_stats()] == [False, True, False, False]


def test_a_limit_of_bytes_holds(rng):
    held = cache("f16", max_bytes=400_000)
    k = tokens(rng, 100)
    held.append(0, k, k)
    with pytest.raises(tqkv.TqkvError, match="full: .* bytes are needed"):
        for _ in range(10):
            held.append(0, k, k)
    assert held.stats()["allocated_bytes"] <= 400_000
    assert np.isfinite(held.attend(0, tokens(rng, 1, HEADS)[0])).all()


NEEDED = ("layers", "heads", "head-dim")
SHAPE = "layers=2 heads=4 kv-heads=2 head-dim=64"


def words(held):
    """The words of a cache."""
    return set(held.spec.split())


@pytest.mark.parametrize("name, example", _native.Cache.options())
def test_every_option_is_one_of_python(name, example):
    word = f"{name}={example}"
    others = [other for other in SHAPE.split() if not other.startswith(f"{name}=")]
    text = " ".join([*others, word])
    held = tqkv.KvCache.from_spec(text)
    plain = tqkv.KvCache.from_spec(SHAPE if name in NEEDED else " ".join(others))
    written = example if name == "kv" else word
    assert written in words(held) - words(plain)
    assert words(tqkv.KvCache.from_spec(held.spec)) == words(held)
    # The same in `kv`, and by the name of an argument.
    if name not in (*NEEDED, "kv-heads", "kv"):
        assert words(cache(f"s4 {word}")) == words(held)
    # Those of other types in Python are in the test below.
    if name not in (*NEEDED, "kv-heads", "kv", "spill", "sink-logits"):
        options = {name.replace("-", "_"): example}
        assert words(cache("s4", **options)) == words(held)


def test_arguments_say_what_the_text_says():
    by_arguments = cache(
        "t4,t3",
        hot=128,
        windows=[None, 256],
        layers=["n4", "n4,n3"],
        cold=[(600, "n3,n2"), (900, "n2")],
        spill=(4000, "/tmp"),
        sink_logits=np.arange(8, dtype=np.float32).reshape(2, 4) / 3,
        value_dim=128,
        scale=0.1,
        soft_cap=None,
    )
    logits = "/".join(str(np.float32(i) / np.float32(3)) for i in range(8))
    text = (
        f"{SHAPE} value-dim=128 t4,t3 hot=128 kinds=full/256 each:n4/n4,n3 tier=900:n2 tier=600:n3,n2 spill=4000:/tmp"
        f" sink-logits={logits} scale=0.1"
    )
    assert by_arguments.spec == tqkv.KvCache.from_spec(text).spec
    assert cache("t4 hot=32", hot=16).spec == cache("t4 hot=16").spec, "an argument has the last word"


ONE = np.ones((1, KV_HEADS, DIM), np.float32)
REFUSED = [
    (lambda: tqkv.KvCache(0, 2, 2, 64), "must be above 0"),
    (lambda: tqkv.KvCache(1, 2, 2, 65), "head dim not supported"),
    (lambda: tqkv.KvCache(1, 3, 2, 64), "3 query heads do not divide among 2 KV heads"),
    (lambda: cache("t4,t9"), "'t9' is not a codec"),
    (lambda: cache("t4,t3,t2"), "'t4,t3,t2' has 3 parts"),
    (lambda: cache("m3 map=pairs"), "m3 is not valid for values: expected a codec of one width, such as t2"),
    (lambda: cache("t4 hot"), "hot= is not valid: expected hot=TOKENS, such as hot=32"),
    (lambda: cache(warm=3), "warm= is not valid: expected layers=, heads="),
    (lambda: cache(centring="maybe"), "centring=maybe is not valid: expected centring=auto"),
    (lambda: cache(layers=["s4"]), "1 pairs of codecs for 2 layers"),
    (lambda: cache(windows=[7]), "1 kinds for 2 layers"),
    (lambda: cache().append(2, ONE, ONE), "layer 2 is out of range"),
    (lambda: cache().append(0, ONE[0], ONE[0]), r"k of the shape \[2, 64\] is not valid: expected \[tokens, 2, 64\]"),
    (lambda: cache().append(0, ONE, np.ones((2, 2, 64), np.float32)), "v of 2 tokens is not valid: expected 1"),
    (lambda: cache().append(0, ONE * np.nan, ONE), "layer 0, key of token 0, KV head 0, which stays f16: values must be finite"),
    (lambda: cache().attend(0, np.ones((4, 64), np.float32)), "layer 0 holds no token yet"),
    (lambda: cache().attend(0, np.ones((2, 64), np.float32)), r"q of the shape \[2, 64\] is not valid: expected \[4, 64\]"),
    (lambda: cache().scores(0, 9, np.ones(64, np.float32)), "query head 9 is out of range"),
    (lambda: cache().keys(0, None, 0, 1 << 60), "are not all there"),
    (lambda: cache().keys(0, 1, 5, 3), "are not all there"),
    (lambda: cache().keys(0, 2), "KV head 2 is out of range"),
    (lambda: cache().restore(b"no snapshot"), "snapshot: "),
]


@pytest.mark.parametrize("call, text", REFUSED, ids=range(len(REFUSED)))
def test_refusals_say_what_is_accepted(call, text):
    with pytest.raises(tqkv.TqkvError, match=text) as refused:
        call()
    assert "\n" not in str(refused.value)


def test_chosen_tokens_alone_are_attended_to(rng):
    held, q = cache(), tokens(rng, 1, HEADS)[0]
    held.append(0, tokens(rng, 300), tokens(rng, 300))
    full, everything = held.attend(0, q), range(300)
    np.testing.assert_array_equal(held.attend_selected(0, q, [everything] * KV_HEADS), full)
    # Each KV head has a list, which may be an array.
    part = held.attend_selected(0, q, [np.arange(20, 30, dtype=np.uint32)] + [everything] * (KV_HEADS - 1))
    group = HEADS // KV_HEADS
    assert (part[:group] != full[:group]).any()
    np.testing.assert_array_equal(part[group:], full[group:])
    for lists, why in [
        ([everything] * (KV_HEADS + 1), "lists for layer 0 are not valid: expected"),
        ([[3, 3]] * KV_HEADS, "token 3 after 3 is not valid: expected ascending tokens"),
        ([[300]] * KV_HEADS, "token 300 is not valid: expected those that the newest position sees, 0 to 299"),
        ([[-1]] * KV_HEADS, "tokens with -1 is not valid: expected numbers from 0 on"),
        ([["a"]] * KV_HEADS, "tokens of the type list is not valid: expected a list of whole numbers"),
        (7, "tokens of the type int are not valid: expected a list of whole numbers for each KV head"),
    ]:
        with pytest.raises(tqkv.TqkvError, match=why):
            held.attend_selected(0, q, lists)


WRONG = [
    (lambda: cache(hot="many"), "hot=many is not valid"),
    (lambda: cache(sinks=-1), "sinks=-1 is not valid"),
    (lambda: cache(cold=[(1, 2)]), "tier=1:2 is not valid"),
    (lambda: cache(cold=[1]), "cold, .* of another form is not valid"),
    (lambda: cache(layers=7), "layers, .* of another form is not valid"),
    (lambda: cache(sink_logits="a"), "sink_logits of another form is not valid"),
    (lambda: tqkv.KvCache(1, 1, 1, 64, 7), "kv 7 is not valid: expected a text such as"),
    (lambda: tqkv.KvCache.from_spec(None), "kv None is not valid"),
    (lambda: tqkv.KvCache(1, 1, 1, 64, max_bytes=-1), "max_bytes -1 is not valid: expected a whole number from 0 on"),
    (lambda: cache().truncate(-1), "length -1 is not valid"),
    (lambda: cache().truncate(True), "length True is not valid"),
    (lambda: cache().attend("0", X), "layer '0' is not valid"),
    (lambda: cache().scores(0, 1 << 70, X), "head 1180591620717411303424 is not valid"),
    (lambda: cache().keys(0, 0, 0.5), "start 0.5 is not valid"),
    (lambda: cache().restore("text"), "snapshot of the type str is not valid: expected bytes"),
    (lambda: tqkv.Codec("t3", -1), "dim -1 is not valid"),
    (lambda: tqkv.Codec(3), "name 3 of a codec is not valid"),
    (lambda: tqkv.Codec("t3", 64).encode([[1.0], [1.0, 2.0]]), "a list that NumPy cannot read is not valid"),
]
X = np.ones((4, 64), np.float32)


@pytest.mark.parametrize("call, text", WRONG, ids=range(len(WRONG)))
def test_arguments_of_other_types_are_refused_by_name(call, text):
    with pytest.raises(tqkv.TqkvError, match=text) as refused:
        call()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("make", ["float8_e4m3fn", "sparse", "meta"])
def test_tensors_that_numpy_cannot_have_are_refused_by_name(make):
    torch = pytest.importorskip("torch")
    made = {"sparse": lambda: torch.eye(64).to_sparse(), "meta": lambda: torch.ones(1, 64, device="meta")}
    x = made.get(make, lambda: torch.ones(1, 64).to(getattr(torch, make)))()
    with pytest.raises(tqkv.TqkvError, match="^a tensor (of|on) .* is not valid: expected"):
        tqkv.Codec("t3", 64).encode(x)


@pytest.mark.parametrize("max_bytes", [None, 1 << 22])
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda cache: pickle.loads(pickle.dumps(cache))])
def test_copies_share_nothing_that_changes(rng, way, max_bytes):
    cache = tqkv.KvCache(2, 4, 2, 64, "t4,t3 hot=8", max_bytes=max_bytes)
    k, v = rng.standard_normal((2, 100, 2, 64), dtype=np.float32)
    for layer in range(2):
        cache.append(layer, k, v)
    copied, q = way(cache), rng.standard_normal((4, 64), dtype=np.float32)
    assert copied.layer_codecs == cache.layer_codecs and len(copied) == 100
    for layer in range(2):
        np.testing.assert_array_equal(copied.attend(layer, q), cache.attend(layer, q))
    copied.append(0, k[:3], v[:3])
    assert (len(cache), len(copied)) == (100, 103)
    if max_bytes is not None:
        with pytest.raises(tqkv.TqkvError, match="bytes are needed"):
            for _ in range(1000):
                copied.append(0, k, v)
    with pytest.raises(tqkv.TqkvError):
        tqkv.KvCache.from_snapshot(cache.snapshot()[:-5])
