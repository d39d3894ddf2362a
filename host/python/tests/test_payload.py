"""Payloads: the bytes of SPEC.md, round trips compared with `Codec`, damage."""

import hashlib
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tqkv
from tqkv.payload import Format, Header, Shape, decode

LAYERS, TOKENS, HEADS, DIM = 3, 40, 2, 64


def sides(dtype=torch.bfloat16, tokens=TOKENS, seed=0):
    """Keys with a large constant, and values."""
    torch.manual_seed(seed)
    keys, values = torch.randn(2, LAYERS, tokens, HEADS, DIM)
    return (keys + 8 * torch.randn(LAYERS, 1, HEADS, DIM)).to(dtype), values.to(dtype)


def blank(keys):
    return torch.zeros_like(keys), torch.zeros_like(keys)


def bits(x):
    return x.contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("codec", ["t3", "t4,t3", "i8,s4", "f16"])
def test_without_centring_blocks_are_those_of_the_codecs(codec, dtype):
    keys, values = sides(dtype)
    data = Format(codec, seed=7, centre=False, exact=0).encode([(keys, values)])
    assert len(data) == Format(codec, 7, False, 0).size(keys.shape, dtype)
    names = (codec.split(",") * 2)[:2]
    k, v = (tqkv.Codec(name, DIM, 7) for name in names)
    blocks = [k.encode(keys), v.encode(values)]
    assert bytes(data[64:-4]) == b"".join(bytes(part.numpy()) for part in blocks)
    got = blank(keys)
    decode(data, [got])
    assert torch.equal(bits(got[0]), bits(k.decode(blocks[0], dtype)))
    assert torch.equal(bits(got[1]), bits(v.decode(blocks[1], dtype)))


def test_centring_takes_the_mean_of_each_layer_and_head():
    keys, values = sides()
    data = Format("t4,t3", exact=0).encode([(keys, values)])
    means = torch.from_numpy(data[64 : 64 + 2 * LAYERS * HEADS * DIM].copy().view(np.float16))
    mean = keys.float().mean(1).half()
    assert torch.equal(means.view(LAYERS, HEADS, DIM), mean)
    codec = tqkv.Codec("t4", DIM)
    centred = codec.decode(codec.encode(keys.float() - mean.float()[:, None]))
    got = blank(keys)
    decode(data, [got])
    assert torch.equal(bits(got[0]), bits((centred + mean.float()[:, None]).to(keys.dtype)))
    plain = blank(keys)
    decode(Format("t4,t3", centre=False, exact=0).encode([(keys, values)]), [plain])
    errors = [float((k.float() - keys.float()).square().mean()) for k in (got[0], plain[0])]
    assert errors[0] < 0.1 * errors[1]
    assert torch.equal(bits(got[1]), bits(plain[1]))


@pytest.mark.parametrize("exact", [1, 4, TOKENS, TOKENS + 1])
def test_the_first_tokens_stay_as_they_are(exact):
    keys, values = sides()
    data = Format("t4,t3", exact=exact).encode([(keys, values)])
    assert len(data) == Format("t4,t3", exact=exact).size(keys.shape, keys.dtype)
    got, rest = blank(keys), blank(keys[:, exact:])
    decode(data, [got])
    for side, want in zip(got, (keys, values)):
        assert torch.equal(bits(side[:, :exact]), bits(want[:, :exact]))
    # The other tokens are encoded as they are without the exact ones, with a mean of their own.
    decode(Format("t4,t3", exact=0).encode([(keys[:, exact:], values[:, exact:])]), [rest])
    for side, want in zip(got, rest):
        assert torch.equal(bits(side[:, exact:]), bits(want))


def test_views_of_any_strides_have_one_payload():
    keys, values = sides()
    data = Format().encode([(keys, values)])
    # Heads come before tokens, K and V are neighbours, and tokens have two axes.
    packed = torch.stack([keys, values], -2).view(LAYERS, 5, 8, HEADS, 2, DIM).transpose(2, 3).contiguous()
    parts = lambda x: tuple(side.transpose(2, 3) for side in x.unbind(-2))
    assert bytes(Format().encode([parts(packed)])) == bytes(data)
    got, wanted = torch.zeros_like(packed), blank(keys)
    decode(data, [parts(got)])
    decode(data, [wanted])
    for strided, plain in zip(parts(got), wanted):
        assert torch.equal(bits(strided.reshape(plain.shape)), bits(plain))


def test_more_axes_of_tokens_and_memory_in_any_order_have_the_same_payload():
    keys, values = sides(torch.float32)
    data = Format("s4").encode([(keys, values)])
    split = lambda x: x.view(LAYERS, 2, 4, 5, HEADS, DIM)
    backwards = lambda x: x.flip(-1).contiguous().flip(-1)
    for view in (split, backwards, lambda x: x.permute(4 - 1, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
        assert bytes(Format("s4").encode([(view(keys), view(values))])) == bytes(data)
        got, wanted = [view(x) for x in blank(keys)], blank(keys)
        decode(data, [tuple(got)])
        decode(data, [wanted])
        for side, plain in zip(got, wanted):
            assert torch.equal(bits(side.reshape(plain.shape)), bits(plain))


@pytest.mark.parametrize("axes", [(0, 4, 2, 64), (2, 0, 2, 64), (2, 0, 3, 2, 64), (2, 3, 0, 2, 64), (2, 4, 0, 64)])
def test_parts_without_numbers_have_a_payload(axes):
    empty = torch.zeros(axes, dtype=torch.bfloat16)
    data = Format("s4").encode([(empty, empty.clone())])
    assert len(data) == Format("s4").size(axes, empty.dtype)
    decode(data, [(empty, empty.clone())])


def test_views_whose_numbers_share_memory_are_not_written():
    keys, values = sides()
    data = Format("s4").encode([(keys, values)])
    shared = torch.zeros(1, TOKENS, HEADS, DIM, dtype=keys.dtype)
    with pytest.raises(tqkv.TqkvError, match="share memory"):
        decode(data, [(shared.expand(LAYERS, -1, -1, -1), torch.zeros_like(values))])
    assert not shared.any()


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 255, 256, 257, 300, 4099])
def test_means_are_those_of_pytorch_to_the_bit(tokens):
    torch.manual_seed(tokens)
    keys = (3 * torch.randn(2, tokens, 2, 64) + 100).bfloat16()
    data = Format("i8", exact=0).encode([(keys, keys)])
    means = torch.from_numpy(data[64 : 64 + 2 * 2 * 2 * 64].copy().view(np.float16)).view(2, 2, 64)
    for layer, mean in zip(keys, means):
        assert torch.equal(mean, (layer.float().sum(0) / tokens).half())


@pytest.mark.parametrize("codec, digest", [("s4", "e1f052fd621cd018"), ("t4,t3", "cae491b2f1196ba7"), ("i8,q4_0", "411b8580860f61de")])
def test_bytes_stay_as_they_are(codec, digest):
    """The digests are those of the first version, which had other code."""
    steps = torch.arange(2 * LAYERS * 70 * HEADS * DIM, dtype=torch.int64)
    numbers = ((steps * 2654435761) % 65537).float() / 65537 - 0.3
    keys, values = numbers.view(2, LAYERS, 70, HEADS, DIM).bfloat16()
    data = Format(codec, seed=5).encode([(keys, values)])
    got = blank(keys)
    decode(data, [got])
    everything = bytes(data) + b"".join(bytes(bits(x).numpy()) for x in got)
    assert hashlib.sha256(everything).hexdigest()[:16] == digest


def test_several_parts_follow_each_other():
    first, second = sides(), sides(torch.float16, tokens=9, seed=1)
    out = bytearray(Format().size(first[0].shape, first[0].dtype) + Format().size(second[0].shape, second[0].dtype))
    assert Format().encode([first, second], out) == len(out)
    assert out == bytes(Format().encode([first])) + bytes(Format().encode([second]))
    got = blank(first[0]), blank(second[0])
    decode(out, got)
    alone = blank(second[0])
    decode(Format().encode([second]), [alone])
    assert torch.equal(bits(got[1][0]), bits(alone[0]))
    with pytest.raises(tqkv.TqkvError, match="out of .* bytes is not valid: expected"):
        Format().encode([first, second], out[:-1])
    with pytest.raises(tqkv.TqkvError, match="is not valid: expected"):
        decode(out, [blank(first[0])])


def test_header_is_that_of_the_specification():
    keys, values = sides()
    data = bytes(Format("t4,t3", seed=2**63 + 5).encode([(keys, values)]))
    assert data[:12] == bytes.fromhex("89545150 0d0a1a0a 0100 0100".replace(" ", ""))
    assert data[12:28] == b"t4".ljust(8, b"\0") + b"t3".ljust(8, b"\0")
    assert struct.unpack_from("<HHQ4I", data, 28) == (2, 4, 2**63 + 5, LAYERS, TOKENS, HEADS, DIM)
    assert data[56:64] == hashlib.sha256(b"").digest()[:8]
    assert struct.unpack("<I", data[-4:])[0] == zlib.crc32(data[:-4])
    header = Header.unpack(np.frombuffer(data, np.uint8))
    assert header.shape == Shape(LAYERS, TOKENS, HEADS, DIM) and header.size == len(data)


def test_ten_thousand_damaged_payloads_are_refused_and_write_nothing():
    keys, values = sides(tokens=8)
    data = np.array(Format("t4,t3").encode([(keys, values)]))
    rng = np.random.default_rng(1)
    k, v = (torch.full_like(keys, 7) for _ in range(2))
    for i in range(10_000):
        if i % 4 == 0:
            mutant = data[: rng.integers(len(data))]
        else:
            mutant = data.copy()
            # Every second change is in the header.
            at = rng.integers(68 if i % 2 else len(data), size=rng.integers(1, 4))
            mutant[at] ^= rng.integers(1, 256, len(at), np.uint8)
        if bytes(mutant) == bytes(data):
            continue
        with pytest.raises(tqkv.TqkvError):
            decode(mutant, [(k, v)])
    assert (k == 7).all() and (v == 7).all()


def test_forged_headers_are_refused_although_their_crc_fits():
    keys, values = sides(tokens=8)
    data = bytes(Format("t4,t3").encode([(keys, values)]))
    for at in range(8, 64):
        for byte in (0, 1, 255, data[at] ^ 1):
            forged = data[:at] + bytes([byte]) + data[at + 1 : -4]
            forged += struct.pack("<I", zlib.crc32(forged))
            # Another seed is another valid payload.
            if forged == data or 32 <= at < 40:
                continue
            with pytest.raises(tqkv.TqkvError):
                decode(forged, [blank(keys)])


@pytest.mark.parametrize(
    "wanted, why",
    [
        (torch.zeros(LAYERS, TOKENS, HEADS, DIM), "is not valid: expected torch.float32"),
        (torch.zeros(LAYERS, TOKENS + 1, HEADS, DIM, dtype=torch.bfloat16), "is not valid: expected torch"),
        (torch.zeros(LAYERS, TOKENS, 2 * HEADS, DIM // 2, dtype=torch.bfloat16), "is not valid: expected torch"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(wanted, why):
    keys, values = sides()
    with pytest.raises(tqkv.TqkvError, match=why):
        decode(Format().encode([(keys, values)]), [(wanted, wanted.clone())])


def test_a_payload_decodes_under_its_name_only():
    keys, values = sides()
    data = Format().encode([(keys, values)], name="model@1")
    decode(data, [blank(keys)], "model@1")
    for name in ("", "model@2"):
        with pytest.raises(tqkv.TqkvError, match="another name"):
            decode(data, [blank(keys)], name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_finite_is_refused_whatever_the_crc_says(dtype):
    """Another user of a store may write any bytes."""
    parts = [sides(dtype), sides(dtype, seed=1)]
    good = Format("i8", exact=4).encode(parts)
    size = len(good) // 2
    rows, width = HEADS * DIM, torch.empty(0, dtype=dtype).element_size()
    kept = LAYERS * 4 * rows * width
    means = 64 + 2 * kept
    blocks = means + 2 * LAYERS * rows
    nan = torch.tensor([float("nan")], dtype=dtype).view(torch.uint8).numpy()
    inf = np.array([np.inf], "<f2").view(np.uint8)
    # Exact keys and values, a mean, the scale of a block of keys and of the last block of values.
    last = size - 4 - (DIM + 2)
    for at, bad in ((64, nan), (64 + kept, nan), (means, inf), (blocks, inf), (last, inf)):
        data = good.copy()
        # The change is in the second part, and the first part is intact.
        data[size + at : size + at + len(bad)] = bad
        data[-4:] = np.frombuffer(struct.pack("<I", zlib.crc32(data[size:-4])), np.uint8)
        got = [blank(keys) for keys, _ in parts]
        with pytest.raises(tqkv.TqkvError, match="(?i)finite"):
            decode(data, got)
        assert not any(x.any() for part in got for x in part), at


def test_more_effort_is_less_error_in_as_many_bytes():
    keys, values = sides()
    errors = []
    for effort in ("fast", "default", "best"):
        format = Format("t4,t3", effort=effort)
        data, got = format.encode([(keys, values)]), blank(keys)
        assert len(data) == Format("t4,t3").size(keys.shape, keys.dtype)
        decode(data, [got])
        errors.append(sum(float((a.float() - b.float()).square().sum()) for a, b in zip(got, (keys, values))))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] > 0.8 * errors[0]


def test_what_cannot_be_encoded_is_refused():
    for token in (2, 20):
        keys, values = sides()
        values[1, token, 0, 3] = float("nan")
        with pytest.raises(tqkv.TqkvError, match="(?i)finite|nan"):
            Format().encode([(keys, values)])
    with pytest.raises(tqkv.TqkvError, match="torch.int8"):
        Format().encode([(torch.zeros(1, 1, 1, 64, dtype=torch.int8),) * 2])
    with pytest.raises(tqkv.TqkvError, match="one shape and dtype"):
        Format().encode([(keys, values.float())])
    for wrong in ({"exact": -1}, {"exact": True}, {"codec": "t9"}, {"codec": "m2,t2"}, {"codec": "t2 map=pairs"}, {"codec": "t3,t3,t3"}, {"seed": -1}, {"centre": "no"}, {"effort": "most"}, {"effort": 2}):
        with pytest.raises(tqkv.TqkvError, match=next(iter(wrong))):
            Format(**wrong)


def test_two_threads_write_the_same_bytes():
    parts = [sides(seed=seed) for seed in range(8)]
    alone = [bytes(Format().encode([part])) for part in parts]

    def round_trip(i):
        data = bytes(Format().encode([parts[i]]))
        got = blank(parts[i][0])
        decode(data, [got])
        return data, got

    with ThreadPoolExecutor(2) as pool:
        for i, (data, got) in enumerate(pool.map(round_trip, [*range(8)] * 4)):
            wanted = blank(got[0])
            decode(alone[i % 8], [wanted])
            assert data == alone[i % 8] and torch.equal(bits(got[0]), bits(wanted[0]))


def test_package_needs_neither_engines_nor_torch():
    code = "import sys, tqkv; print([m for m in ('torch', 'lmcache', 'vllm', 'sglang') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def linear(tokens, seed):
    """Keys and values that are linear maps of one hidden vector per token, like those of a model."""
    maps = torch.randn(32, LAYERS * 2 * HEADS * DIM, generator=torch.Generator().manual_seed(0))
    hidden = torch.randn(tokens, 32, generator=torch.Generator().manual_seed(seed))
    both = (hidden @ maps).view(tokens, LAYERS, 2, HEADS, DIM)
    return tuple(both.permute(2, 1, 0, 3, 4).contiguous().bfloat16())


@pytest.fixture
def basis(tmp_path):
    learner = tqkv.Learner(LAYERS, HEADS, DIM, tqkv.Rope(kind="none"))
    learner.learn(*linear(1024, 1))
    path = tmp_path / "basis.tqb"
    learner.freeze("model").save(path)
    return str(path)


@pytest.mark.parametrize("tokens", [40, 256, 600])
def test_with_a_budget_parts_are_chunks_of_the_storage_tier(basis, tokens):
    keys, values = linear(tokens, 2)
    format = Format(budget=2.0, basis=basis)
    parts = [(keys, values), linear(tokens, 3)]
    data = format.encode(parts, name="a")
    assert len(data) <= 2 * format.size(keys.shape, keys.dtype)
    assert len(data) < 0.8 * len(Format("t3").encode(parts))
    decoded = [blank(keys), blank(keys)]
    decode(data, decoded, "a", basis)
    wrong = [(got.float() - want.float()).square().sum() / want.float().square().sum()
             for got, want in zip(sum(decoded, ()), sum(parts, ()))]
    assert max(wrong) < 0.05
    out = torch.zeros(len(data), dtype=torch.uint8)
    assert format.encode(parts, out.numpy(), "a") == len(data) and bytes(out.numpy()) == bytes(data)


def test_chunks_of_another_name_basis_or_shape_are_refused(basis, tmp_path):
    keys, values = linear(64, 2)
    data = Format(budget=1.0, basis=basis).encode([(keys, values)], name="a")
    target = blank(keys)
    with pytest.raises(tqkv.TqkvError, match="another name"):
        decode(data, [target], "b", basis)
    with pytest.raises(tqkv.TqkvError, match="expected the file of its basis"):
        decode(data, [target], "a")
    with pytest.raises(tqkv.TqkvError, match="chunk of 64 tokens is not valid: expected 32"):
        decode(data, [linear(32, 2)], "a", basis)
    other = tqkv.Learner(LAYERS, HEADS, DIM, tqkv.Rope(kind="none"))
    other.learn(*linear(512, 9))
    other.freeze("model").save(tmp_path / "other.tqb")
    with pytest.raises(tqkv.TqkvError, match="needs basis"):
        decode(data, [target], "a", str(tmp_path / "other.tqb"))
    damaged = data.copy()
    damaged[-300] ^= 1
    with pytest.raises(tqkv.TqkvError, match="damaged"):
        decode(damaged, [target], "a", basis)
    assert not target[0].any() and not target[1].any()
    with pytest.raises(tqkv.TqkvError, match="expected both"):
        Format(budget=1.0)
    with pytest.raises(tqkv.TqkvError, match="0.5 to 5"):
        Format(budget=7.0, basis=basis).size(keys.shape, keys.dtype)
