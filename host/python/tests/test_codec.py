"""Blocks are the same as those of the Rust library, for every kind of array."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tqkv

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "vectors" / "blocks.txt"


@pytest.mark.skipif(not GOLDEN.exists(), reason="golden blocks are in the repository only")
def test_blocks_are_those_of_the_golden_file():
    words = [line.split() for line in GOLDEN.read_text().splitlines()]
    # "# vector DIM VALUES": float32 in little endian.
    vectors = {of[2]: np.frombuffer(bytes.fromhex(of[3]), "<f4") for of in words if of[:2] == ["#", "vector"]}
    lines = [line for line in words if line[0] != "#"]
    assert len(lines) > 100
    for name, dim, seed, scale_mode, effort, block in lines:
        codec = tqkv.Codec(name, int(dim), int(seed), scale_mode=scale_mode, effort=effort)
        if block == "refused":
            with pytest.raises(tqkv.TqkvError):
                codec.encode(vectors[dim])
        else:
            assert codec.encode(vectors[dim]).tobytes().hex() == block, (name, dim)


@pytest.mark.parametrize("name", tqkv.Codec.names())
def test_every_codec_makes_the_round_trip(name, rng):
    codec = tqkv.Codec(name, 128)
    # More vectors than one thread takes, and no multiple of that number.
    x = rng.standard_normal((5, 41, 128), dtype=np.float32)
    blocks = codec.encode(x)
    assert blocks.shape == (5, 41, codec.block_bytes)
    assert codec.bits_per_value == codec.block_bytes * 8 / 128
    y = codec.decode(blocks)
    error = ((y - x) ** 2).sum() / (x**2).sum()
    # Half of m2's coordinates have one bit.
    rate = {"m2": 1.9}.get(name, min(codec.bits_per_value - 0.1, 8))
    assert error < 3.4 * 4**-rate
    # Encoding one by one gives the same.
    assert (codec.encode(x[3, 7]) == blocks[3, 7]).all()
    assert (codec.decode(blocks[3, 7]) == y[3, 7]).all()


def test_types_of_arrays_and_tensors_hold_the_same_vectors(rng, torch):
    codec = tqkv.Codec("t3", 64)
    x = rng.standard_normal((3, 50, 64), dtype=np.float32)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensor = torch.from_numpy(x).to(dtype)
        blocks = codec.encode(tensor)
        assert isinstance(blocks, torch.Tensor) and blocks.dtype == torch.uint8
        assert (codec.encode(tensor.float().numpy()) == blocks.numpy()).all()
        # Another layout in memory.
        turned = tensor.transpose(0, 1)
        assert (codec.encode(turned) == blocks.transpose(0, 1)).all()
        decoded = codec.decode(blocks, dtype)
        assert decoded.dtype == dtype
        assert torch.equal(decoded, codec.decode(blocks).to(dtype))
    bits = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert (codec.encode(bits) == codec.encode(torch.from_numpy(x).bfloat16()).numpy()).all()
    half = codec.decode(codec.encode(x), np.float16)
    assert half.dtype == np.float16
    assert codec.decode(codec.encode(x), "bfloat16").dtype == np.uint16


def test_an_array_of_another_library_is_taken(rng):
    class Foreign:
        """An object with DLPack only."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    codec = tqkv.Codec("s4", 32)
    x = rng.standard_normal((7, 32), dtype=np.float32)
    assert (codec.encode(Foreign(x)) == codec.encode(x)).all()


def test_results_are_written_where_the_caller_says(rng, torch):
    codec = tqkv.Codec("s4", 128)
    x = rng.standard_normal((20, 128), dtype=np.float32)
    memory = np.zeros(20 * codec.block_bytes, np.uint8)
    out = memory.reshape(20, -1)
    assert codec.encode(x, out=out) is out
    assert (out == codec.encode(x)).all()
    y = torch.zeros(20, 128, dtype=torch.bfloat16)
    assert codec.decode(out, "bfloat16", out=y) is y
    assert torch.equal(y, codec.decode(torch.from_numpy(out), torch.bfloat16))
    for bad in (np.zeros((20, 3), np.uint8), np.zeros((20, 66), np.int8), memory, "out", np.zeros((66, 20), np.uint8).T):
        with pytest.raises(tqkv.TqkvError, match="out"):
            codec.encode(x, out=bad)
    out.setflags(write=False)
    with pytest.raises(tqkv.TqkvError, match="out"):
        codec.encode(x, out=out)


def test_scores_and_attention_are_those_of_decoded_vectors(rng):
    keys, values = tqkv.Codec("t4", 64), tqkv.Codec("s3", 128, seed=5)
    k = rng.standard_normal((3000, 64), dtype=np.float32)
    v = rng.standard_normal((3000, 128), dtype=np.float32)
    q = rng.standard_normal((2, 3, 64), dtype=np.float32)
    k_blocks, v_blocks = keys.encode(k), values.encode(v)
    scores = keys.scores(q, k_blocks)
    exact = q @ keys.decode(k_blocks).T
    assert scores.shape == (2, 3, 3000)
    np.testing.assert_allclose(scores, exact, rtol=1e-4, atol=1e-4)
    for scale in (None, 0.5):
        out = keys.attend(q, k_blocks, v_blocks, value_codec=values, scale=scale)
        logits = exact.astype(np.float64) * (scale or 64**-0.5)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        expected = weights / weights.sum(-1, keepdims=True) @ values.decode(v_blocks)
        np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-4)
    assert keys.scores(q[0, 0], k_blocks[:0]).shape == (0,)
    with pytest.raises(tqkv.TqkvError, match="0 keys"):
        keys.attend(q, k_blocks[:0], v_blocks[:0], value_codec=values)


def test_the_name_of_a_codec_stands_for_it(rng, tmp_path):
    codec, four = tqkv.Codec("t3", 64, 9), tqkv.Codec("t4", 64, 9)
    q, keys, values = rng.standard_normal((3, 20, 64), dtype=np.float32)
    blocks = codec.encode(keys), four.encode(values)
    assert (codec.attend(q, *blocks, value_codec="t4") == codec.attend(q, *blocks, value_codec=four)).all()
    tqkv.save(tmp_path / "named", keys, "t3")
    tqkv.save(tmp_path / "made", keys, tqkv.Codec("t3", 64))
    assert (tmp_path / "named").read_bytes() == (tmp_path / "made").read_bytes()
    # No value is masked, so none is lost.
    assert (codec.encode(np.ma.array(keys)) == codec.encode(keys)).all()


def test_estimates_are_unbiased(rng):
    compressor = tqkv.Compressor(head_dim=128, kv="t2")
    k = rng.standard_normal((20000, 128), dtype=np.float32)
    q = rng.standard_normal(128, dtype=np.float32)
    compressed = compressor.compress_k(k)
    exact = k @ q
    slope = (compressor.estimate(q, compressed) * exact).sum() / (exact**2).sum()
    assert abs(slope - 1) < 0.01
    assert compressor.value_codec.name == "t2"
    v = compressor.compress_v(k)
    assert (compressor.decompress_v(v) == compressor.decompress_k(v)).all()


def attend_with(value_codec):
    return tqkv.Codec("s4").attend(np.zeros(128, np.float32), *np.zeros((2, 9, 66), np.uint8), value_codec=value_codec)


REFUSED = [
    (lambda: tqkv.Codec("t9"), "codec 't9' is not valid: expected f16, "),
    (lambda: tqkv.Codec("t3", 77), "dim 77: head dim not supported: accepted are "),
    (lambda: tqkv.Codec("t3", scale_mode="best"), "scale_mode 'best' is not valid: expected raw, "),
    (lambda: tqkv.Codec("t3", effort="raw"), "effort 'raw' is not valid: expected fast, "),
    (lambda: tqkv.Codec("t3").encode(np.zeros((2, 64), np.float32)), r"x of the shape \[2, 64\] is not valid: expected \[.., 128\]"),
    (lambda: tqkv.Codec("t3").encode(np.zeros(128)), "x, an array of float64, is not valid: expected an array of float32, "),
    (lambda: tqkv.Codec("t3").encode(np.ma.masked_equal(np.arange(128, dtype=np.float32), 5)), "an array with masked values is not valid: expected"),
    (lambda: attend_with(7), "codec of the type int is not valid: expected a tqkv.Codec or the name of one"),
    (lambda: attend_with("t9"), "codec 't9' is not valid: expected f16, "),
    (lambda: tqkv.TqkWriter("x.tqk", "t3"), "codec of the type str is not valid: expected a tqkv.Codec, which has the dim"),
    (lambda: tqkv.save("x.tqk", np.zeros((2, 64), np.float32), None), "codec of the type NoneType is not valid: expected a tqkv.Codec or"),
    (lambda: tqkv.save("x.tqk", np.float32(1), "t3"), "dim 0: head dim not supported: accepted are "),
    (lambda: tqkv.Codec("t3").encode(["a"]), "x, an array of <U1, is not valid: expected"),
    (lambda: tqkv.Codec("t3").encode(np.zeros(128, ">f4")), "x, an array of >f4, is not valid: expected"),
    (lambda: tqkv.Codec("t3").encode(np.full((3, 128), np.nan, np.float32)), "vector 0 of x: the vector holds NaN"),
    (lambda: tqkv.Codec("s4").decode(np.full((9, 66), 255, np.uint8)), "block 0: the block's scale is NaN or infinite"),
    (lambda: tqkv.Codec("s4").decode(np.zeros((9, 65), np.uint8)), r"blocks of the shape \[9, 65\] is not valid: expected"),
    (lambda: tqkv.Codec("s4").decode(np.zeros((9, 66), np.int8)), "blocks of this type is not valid: expected an array of uint8"),
    (lambda: tqkv.Codec("s4").decode(np.zeros((9, 66), np.uint8), "int8"), "dtype int8 is not valid: expected float32, "),
    (lambda: tqkv.Codec("s4").scores(np.full(128, np.inf, np.float32), np.zeros((9, 66), np.uint8)), "q with NaN or infinity is not valid"),
    (lambda: tqkv.Codec("s4").scores(np.zeros(128, np.float32), np.zeros(66, np.uint8)), r"blocks of the shape \[66\] is not valid: expected"),
]


@pytest.mark.parametrize("call, text", REFUSED, ids=range(len(REFUSED)))
def test_refusals_are_one_line_that_says_what_is_accepted(call, text):
    with pytest.raises(tqkv.TqkvError, match=text) as refused:
        call()
    assert "\n" not in str(refused.value) and isinstance(refused.value, ValueError)


def test_the_first_bad_vector_is_named(rng):
    codec = tqkv.Codec("s4", 64)
    x = rng.standard_normal((500, 64), dtype=np.float32)
    x[[321, 123, 456], 5] = np.inf
    with pytest.raises(tqkv.TqkvError, match="vector 123 of x"):
        codec.encode(x)


def test_pytorch_is_not_imported():
    import subprocess

    code = "import sys, tqkv, numpy; tqkv.Codec('s4').encode(numpy.ones(128, 'f4')); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_copies_and_pickles_are_the_same_codec(rng):
    x = rng.standard_normal((20, 128), dtype=np.float32)
    for made in (tqkv.Codec("t3", 128, 7, scale_mode="mmse", effort="fast"), tqkv.Compressor(128, "t4,t3").key_codec):
        for copied in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            np.testing.assert_array_equal(copied.encode(x), made.encode(x))
            assert (copied.seed, copied.scale_mode, copied.effort) == (made.seed, made.scale_mode, made.effort)


TYPED = """
import numpy as np, torch, tqkv
codec, cache = tqkv.Codec("t3"), tqkv.KvCache(1, 2, 2, 64)
reveal_type(codec.encode(np.zeros((1, 128), np.float32)))
reveal_type(codec.encode(torch.Tensor()))
reveal_type(cache.attend(0, torch.Tensor()))
codec.encode("nonsense")
cache.append(0, 1, 2)
"""


def test_type_checkers_know_arrays_from_tensors(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "torch").mkdir()
    # In place of PyTorch, which mypy reads for half a minute.
    (tmp_path / "torch" / "__init__.pyi").write_text("class Tensor: ...\nclass dtype: ...\n")
    (tmp_path / "typed.py").write_text(TYPED)
    run = [sys.executable, "-m", "mypy", "--no-incremental", "typed.py"]
    text = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    lines = [line for line in text.splitlines() if line.startswith("typed.py")]
    kinds = [line.split('"')[1] for line in lines if "Revealed" in line]
    assert kinds[0].startswith("numpy.ndarray") and kinds[1:] == ["torch.Tensor"] * 2, text
    assert [line.split(":")[1] for line in lines if "error" in line] == ["7", "8", "8"], text
