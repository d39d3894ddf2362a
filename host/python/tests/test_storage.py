"""Chunks of the storage tier: their accuracy, and refused inputs."""

import numpy as np
import pytest

import tqkv

LAYERS, HEADS, DIM, TOKENS = 2, 2, 32, 64


def low_rank(rng, tokens):
    """Keys and values in a few directions, like those of a model."""
    hidden = rng.standard_normal((tokens, 24), dtype=np.float32)
    mix = rng.standard_normal((24, 2 * LAYERS * HEADS * DIM), dtype=np.float32)
    both = (hidden @ mix).reshape(tokens, 2, LAYERS, HEADS, DIM).transpose(1, 2, 0, 3, 4)
    return np.ascontiguousarray(both)


def learned(kv, **shape):
    rope = tqkv.Rope.of(10_000.0, DIM)
    learner = tqkv.Learner(**{"layers": LAYERS, "heads": HEADS, "head_dim": DIM, "rope": rope} | shape)
    learner.learn(*kv)
    assert learner.tokens == kv.shape[2] - 4, "the first four positions stay out of a basis"
    return learner.freeze("mine")


@pytest.fixture(scope="module")
def kv():
    return low_rank(np.random.default_rng(3), 8 * TOKENS)


@pytest.fixture(scope="module")
def storage(kv):
    return tqkv.Storage(learned(kv))


@pytest.fixture
def chunk(storage, kv):
    k, v = np.ascontiguousarray(kv[:, :, :TOKENS])
    return storage.encode(k, v, budget=1.0)


def like(tokens=TOKENS, dtype=np.float32):
    return np.zeros((2, LAYERS, tokens, HEADS, DIM), dtype)


def test_a_chunk_has_the_size_that_was_said_and_says_what_it_holds(storage, kv):
    k, v = np.ascontiguousarray(kv[:, :, TOKENS : 2 * TOKENS])
    chunk = storage.encode(k, v, budget=1.0, first_position=TOKENS, name=b"chunk001")
    assert len(chunk) == storage.size(TOKENS, 1.0, "float32")
    assert storage.peek(chunk) == (len(chunk), TOKENS, TOKENS, b"chunk001")
    assert storage.peek(np.append(chunk, chunk)) == (len(chunk), TOKENS, TOKENS, b"chunk001")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_more_bits_are_a_smaller_error_and_the_first_tokens_are_exact(storage, kv, dtype):
    k, v = np.ascontiguousarray(kv[:, :, :TOKENS].astype(dtype))
    errors = []
    for budget in (1.0, 2.0, 4.0):
        out = like(dtype=dtype)
        storage.decode(storage.encode(k, v, budget), *out)
        assert np.array_equal(out[0][:, :4], k[:, :4]) and np.array_equal(out[1][:, :4], v[:, :4])
        errors.append(float(((out[0] - k).astype(np.float64) ** 2).mean()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2] > 0


def test_without_a_basis_it_serves_from_the_first_token(kv):
    storage = tqkv.Storage.without_basis(LAYERS, HEADS, DIM, tqkv.Rope.of(10_000.0, DIM))
    k, v = np.ascontiguousarray(kv[:, :, :TOKENS])
    out = like()
    storage.decode(storage.encode(k, v, 3.0), *out)
    assert ((out[1] - v) ** 2).mean() < 0.1 * (v**2).mean()


def test_arrays_of_another_shape_are_refused(storage, chunk, kv):
    k, v = np.ascontiguousarray(kv[:, :, :TOKENS])
    for call in (lambda: storage.encode(k[0], v[0], 1.0), lambda: storage.locate(k[0])):
        with pytest.raises(tqkv.TqkvError, match=r"expected \[layers, tokens, heads, head_dim\]"):
            call()
    with pytest.raises(tqkv.TqkvError):
        storage.encode(k, np.ascontiguousarray(v[:, :-1]), 1.0)
    with pytest.raises(tqkv.TqkvError):
        storage.encode(*np.ascontiguousarray(kv[:, :, :300]), 1.0)
    with pytest.raises(tqkv.TqkvError):
        storage.decode(chunk, *like(TOKENS - 1))


@pytest.mark.parametrize("budget", [0.0, -1.0, 9.0, float("nan"), float("inf")])
def test_budgets_outside_the_range_are_refused(storage, budget):
    with pytest.raises(tqkv.TqkvError, match="budget"):
        storage.size(TOKENS, budget)


@pytest.mark.parametrize(
    "call",
    [
        lambda rope, path: tqkv.Storage.without_basis(1, 2, 64, rope),
        lambda rope, path: tqkv.Learner(1, 2, 64, rope),
        lambda rope, path: tqkv.Generations(path, "mine", 1, 2, 64, rope),
    ],
)
def test_a_rope_that_is_none_is_refused(tmp_path, call):
    for rope, kind in ((None, "NoneType"), (1e4, "float")):
        with pytest.raises(tqkv.TqkvError, match=f'rope of the type {kind} is not valid: expected a tqkv.Rope, for no RoPE .*kind="none"'):
            call(rope, tmp_path)


def test_positions_that_would_take_for_ever_are_refused(storage, kv):
    k = np.ascontiguousarray(kv[0][:, :TOKENS])
    with pytest.raises(tqkv.TqkvError, match="expected a position up to"):
        storage.locate(k, end=2**62)


def test_damaged_cut_and_foreign_chunks_are_refused(storage, chunk, kv):
    out = like()
    for at in range(0, len(chunk), 97):
        bad = chunk.copy()
        bad[at] ^= 0x10
        with pytest.raises(tqkv.TqkvError):
            storage.decode(bad, *out)
    for keep in (0, 1, 15, len(chunk) // 2, len(chunk) - 1):
        with pytest.raises(tqkv.TqkvError):
            storage.decode(chunk[:keep], *out)
    other = tqkv.Storage(learned(np.ascontiguousarray(kv[:, :, TOKENS:])))
    with pytest.raises(tqkv.TqkvError, match="basis"):
        other.decode(chunk, *out)


def test_a_basis_of_another_shape_is_refused(chunk, kv):
    one_layer = tqkv.Storage(learned(np.ascontiguousarray(kv[:, :1]), layers=1))
    with pytest.raises(tqkv.TqkvError):
        one_layer.decode(chunk, *like()[:, :1])


def test_layers_share_a_basis(storage, kv):
    together = tqkv.Storage(learned(kv, shared_layers=2))
    k, v = np.ascontiguousarray(kv[:, :, :TOKENS])
    errors = []
    for codec in (storage, together):
        out = like()
        codec.decode(codec.encode(k, v, 1.0), *out)
        errors.append(float(((out[0] - k) ** 2).mean()))
    # Both layers are maps of the same hidden vectors.
    assert errors[1] < 0.8 * errors[0]
    with pytest.raises(tqkv.TqkvError, match="a basis over 3 layers of 2"):
        learned(kv, shared_layers=3)


def test_a_basis_goes_through_its_file(storage, chunk, kv, tmp_path):
    basis = learned(kv)
    basis.save(tmp_path / "basis.tqb")
    out, again = like(), like()
    storage.decode(chunk, *out)
    tqkv.Storage(tqkv.Basis.load(tmp_path / "basis.tqb")).decode(chunk, *again)
    assert np.array_equal(out, again)
    (tmp_path / "cut.tqb").write_bytes((tmp_path / "basis.tqb").read_bytes()[:-1])
    with pytest.raises(tqkv.TqkvError):
        tqkv.Basis.load(tmp_path / "cut.tqb")


def test_a_follower_makes_a_basis_for_its_text_and_the_folder_finds_it(tmp_path):
    rope = tqkv.Rope.of(10_000.0, DIM)
    shape = dict(layers=LAYERS, heads=HEADS, head_dim=DIM, rope=rope)
    k, v = low_rank(np.random.default_rng(5), 24 * TOKENS)
    bases = tqkv.Generations(tmp_path / "bases", "mine", **shape)
    follower = tqkv.Follower("mine", bases.newest(), budget=1.0)
    chunks, made = [], []
    for first in range(0, k.shape[1], TOKENS):
        chunk, basis = follower.encode(k[:, first : first + TOKENS], v[:, first : first + TOKENS], first, name=b"chunk001")
        if basis is not None:
            bases.add(basis)
            made.append(basis.id)
        chunks.append(chunk)
    assert made and follower.storage.peek(chunks[-1]) == (len(chunks[-1]), TOKENS, k.shape[1] - TOKENS, b"chunk001")

    # Another process opens the folder anew.
    bases = tqkv.Generations(str(tmp_path / "bases"), "mine", **shape)
    errors = []
    for i, chunk in enumerate(chunks):
        out = like()
        bases.of(chunk).decode(chunk, *out)
        errors.append(float(((out[1] - v[:, i * TOKENS : (i + 1) * TOKENS]) ** 2).mean()))
    assert max(errors[-4:]) < 0.5 * min(errors[1:4]), "the chunks of a basis lose less than those without one"
    plain = tqkv.Storage.without_basis(**shape)
    plain.decode(chunks[0], *like())
    with pytest.raises(tqkv.TqkvError, match="basis"):
        plain.decode(chunks[-1], *like())
    newest, named = like(), like()
    bases.newest().decode(chunks[-1], *newest)
    bases.of(chunks[-1]).decode(chunks[-1], *named)
    assert np.array_equal(newest, named)


def test_a_follower_takes_its_own_model_and_a_folder_its_own_bases(tmp_path, storage, kv):
    rope = tqkv.Rope.of(10_000.0, DIM)
    with pytest.raises(tqkv.TqkvError, match="another"):
        tqkv.Follower("another", storage, budget=1.0)
    with pytest.raises(tqkv.TqkvError, match="0.5 to 5"):
        tqkv.Follower("mine", storage, budget=9.0)
    folder = tqkv.Generations(tmp_path, "another", LAYERS, HEADS, DIM, rope)
    with pytest.raises(tqkv.TqkvError, match="another"):
        folder.add(learned(kv))
    k, v = np.ascontiguousarray(kv[:, :, :TOKENS])
    chunk, _ = tqkv.Follower("mine", storage, budget=1.0).encode(k, v)
    with pytest.raises(tqkv.TqkvError, match="is not there"):
        tqkv.Generations(tmp_path, "mine", LAYERS, HEADS, DIM, rope).of(chunk)
