"""Numbers, texts and bytes of another kind are refused by name, in every class that takes them."""

import numpy as np
import pytest
import tqkv
from tqkv import session

ROPE = tqkv.Rope(kind="none")
NO_COUNTS = (-1, 1.5, "1", None, True, 1 << 64)
NO_NUMBERS = ("1", None, True, [1.0])


@pytest.fixture(scope="module")
def storage():
    return tqkv.Storage.without_basis(1, 2, 32, ROPE)


K = np.zeros((1, 8, 2, 32), np.float32)


@pytest.mark.parametrize("value", NO_COUNTS)
@pytest.mark.parametrize(
    "name, call",
    [
        ("layers", lambda s, x: tqkv.Learner(x, 2, 64, ROPE)),
        ("heads", lambda s, x: tqkv.Storage.without_basis(1, x, 64, ROPE)),
        ("head_dim", lambda s, x: tqkv.Generations("never", "mine", 1, 2, x, ROPE)),
        ("shared_layers", lambda s, x: tqkv.Learner(1, 2, 64, ROPE, shared_layers=x)),
        ("shared_layers", lambda s, x: tqkv.Follower("mine", s, 3.0, x)),
        ("first_position", lambda s, x: tqkv.Learner(1, 2, 32, ROPE).learn(K, K, x)),
        ("first_position", lambda s, x: s.encode(K, K, 3.0, first_position=x)),
        ("tokens", lambda s, x: s.size(x, 3.0)),
        ("end", lambda s, x: s.locate(K, end=x)),
    ],
)
def test_what_is_no_count_is_refused_by_name(storage, name, call, value):
    with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected a whole number from 0 on"):
        call(storage, value)


def test_what_may_be_left_out_is_refused_too(storage):
    for name, call in [
        ("exact", lambda: storage.encode(K, K, 3.0, exact=1.5)),
        ("head_dim", lambda: session.pack(b"x", head_dim="64")),
        ("shared_layers", lambda: tqkv.Learner(1, 2, 64, ROPE, shared_layers=1 << 16)),
    ]:
        with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected"):
            call()


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "name, call",
    [
        ("budget", lambda s, x: s.size(8, x)),
        ("budget", lambda s, x: s.encode(K, K, x)),
        ("budget", lambda s, x: tqkv.Follower("mine", s, x)),
        ("budget", lambda s, x: session.pack(b"x", budget=x)),
        ("frequency of a RoPE", lambda s, x: tqkv.Learner(1, 2, 32, tqkv.Rope((x,)))),
    ],
)
def test_what_is_no_number_is_refused_by_name(storage, name, call, value):
    with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected a number"):
        call(storage, value)


@pytest.mark.parametrize("value", [None, 7, b"mine"])
@pytest.mark.parametrize(
    "name, call",
    [
        ("model", lambda s, x: tqkv.Learner(1, 2, 64, ROPE).freeze(x)),
        ("model", lambda s, x: tqkv.Follower(x, s, 3.0)),
        ("model", lambda s, x: tqkv.Generations("never", x, 1, 2, 64, ROPE)),
        ("kind of a RoPE", lambda s, x: tqkv.Learner(1, 2, 32, tqkv.Rope(kind=x))),
        ("kv", lambda s, x: session.pack(b"x", kv=x)),
    ],
)
def test_what_is_no_text_is_refused_by_name(storage, name, call, value):
    with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected a text"):
        call(storage, value)


def test_what_is_no_bytes_is_refused_by_name(storage):
    for name, call in [
        ("chunk", lambda: storage.decode(None, K.copy(), K.copy())),
        ("chunk", lambda: storage.decode("text", K.copy(), K.copy())),
        ("data", lambda: storage.peek(5)),
        ("name", lambda: storage.encode(K, K, 3.0, name="chunk001")),
        ("name", lambda: storage.encode(K, K, 3.0, name=b"short")),
        ("basis", lambda: session.pack(b"x", basis="a file")),
    ]:
        with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected"):
            call()


@pytest.mark.skipif(not hasattr(tqkv._native, "GpuCache"), reason="built without the feature cuda")
@pytest.mark.parametrize(
    "name, value",
    [
        (name, value)
        for name in ("num_layers", "num_kv_heads", "head_dim", "sinks", "hot", "num_sequences", "max_tokens", "seed", "device", "stream")
        for value in NO_COUNTS
        # Without a stream it is PyTorch's current one.
        if (name, value) != ("stream", None)
    ],
)
def test_a_cache_on_a_gpu_refuses_what_is_no_count_before_it_looks_for_the_gpu(name, value):
    options = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 64, "num_heads": 1}
    with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected a whole number from 0 on"):
        tqkv.GpuCache(**(options | {name: value}))


def test_a_format_of_payloads_refuses_them_too():
    torch = pytest.importorskip("torch")
    from tqkv.payload import Format, decode

    keys = torch.zeros(1, 8, 2, 64)
    for name, call in [
        ("seed", lambda: Format(seed=1.5)),
        ("exact", lambda: Format(exact="4")),
        ("exact", lambda: Format(exact=1 << 16)),
        ("effort", lambda: Format(effort=None)),
        ("budget", lambda: Format(budget="2", basis="x")),
        ("basis", lambda: Format(budget=2.0, basis=7)),
        ("name", lambda: Format().encode([(keys, keys)], name=7)),
        ("payload", lambda: decode("text", [(keys, keys)])),
        ("out", lambda: Format().encode([(keys, keys)], out=7)),
    ]:
        with pytest.raises(tqkv.TqkvError, match=f"^{name} .* is not valid: expected"):
            call()
