"""`TqkvCache` whose pages are on the model's device: on a fake driver that has the memory of PyTorch's tensors, and on a real GPU.

The package needs the feature `cuda`. `TQKV_FAKE_CUDA` names the library that `cargo build -p tqkv-gpu-fake` makes. Without a GPU the tests
on one are skipped, or fail with `TQKV_REQUIRE_GPU=1`."""

import copy
import ctypes
import os
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tqkv
from test_gpu import Gpu
from tqkv import _native

if not hasattr(_native, "Paged"):
    pytest.skip("built without the feature cuda", allow_module_level=True)

from test_device import DEVICE, Device, OnDevice, moved
from tqkv import _tf_attention, _tf_device, _tf_layer, paged
from tqkv.transformers import TqkvCache
from transformers import AutoModelForCausalLM, DynamicCache, GptOssConfig, LlamaConfig
from transformers.cache_utils import DynamicLayer

DIM = 64
SIZES = dict(
    vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=DIM,
    attention_bias=True, max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=None,
)


class Place:
    """Where a model runs, and how near to the reference it must be."""

    def __init__(self, device, dtype, near, gpu=None):
        self.device, self.dtype, self.near, self.gpu = torch.device(device), dtype, near, gpu


# Of a matrix product in another order some codes are others, and one of them moves a result by 1e-4.
REAL = {"float32": 5e-4, "bfloat16": 2e-2, "float16": 3e-3}


@pytest.fixture(params=["fake", *REAL])
def place(request, monkeypatch):
    if request.param != "fake":
        is_there = torch.cuda.is_available()
        assert is_there or os.environ.get("TQKV_REQUIRE_GPU") != "1", "TQKV_REQUIRE_GPU is set, but there is no GPU"
        if not is_there:
            pytest.skip("no GPU")
        return Place("cuda", getattr(torch, request.param), REAL[request.param])
    gpu = fake(monkeypatch, lambda tensor: tensor)
    for module in (_tf_attention, _tf_layer):
        monkeypatch.setattr(module, "is_on_device", lambda tensor: True)
    return Place("cpu", torch.float32, REAL["float32"], gpu)


def fake(monkeypatch, held):
    """PyTorch's tensors in main memory are those of the fake driver's device 0."""
    path = os.environ.get("TQKV_FAKE_CUDA")
    if not path:
        pytest.skip("TQKV_FAKE_CUDA names no driver of paper")
    gpu = Gpu(path)

    def address(tensor):
        tensor = held(tensor)
        # Tensors of a call may share a storage.
        memory = tensor.untyped_storage()
        gpu.driver.tqkv_fake_map(ctypes.c_size_t(memory.data_ptr()), ctypes.c_size_t(memory.nbytes()))
        return tensor.data_ptr()

    monkeypatch.setattr(paged, "_is_main", lambda device: False)
    monkeypatch.setattr(paged, "_device", lambda tensor: (0, gpu.stream.value))
    monkeypatch.setattr(paged, "_address", address)
    return gpu


def make(place, config=None):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config or LlamaConfig(**SIZES), dtype=torch.float32, attn_implementation="eager")
    # Sharper than initial weights, so that attention matters.
    for parameter in model.parameters():
        parameter.data *= 2.0
    # Keys of the second KV head have a part in common, which RoPE turns little, and values of the first.
    for layer in model.model.layers:
        for projection, head in ((layer.self_attn.k_proj, 1), (layer.self_attn.v_proj, 0)):
            bias = torch.zeros(2, model.config.head_dim)
            bias[head, 20:32] = 2.0 * torch.randn(12)
            projection.bias.data = bias.view(-1)
    return model.eval().to(place.device, place.dtype)


def prompt(place, rows=2, tokens=150, pads=(0, 23)):
    ids = torch.randint(1, 211, (rows, tokens), generator=torch.Generator().manual_seed(5))
    seen = torch.ones_like(ids)
    for row, pad in enumerate(pads[:rows]):
        ids[row, :pad], seen[row, :pad] = 0, 0
    return {"input_ids": ids.to(place.device), "attention_mask": seen.to(place.device)}


class Reference(DynamicLayer):
    """All keys and values as they are, of which `update` gives the older ones as a codec decodes them. The rule is written again here:
    sinks and the newest tokens are exact, groups of 64 leave the window, and the first that are coded give the means."""

    def __init__(self, codecs, hot=64, sinks=4, shares=(0.05, 0.45), pads=None, dim=DIM):
        super().__init__()
        self.codecs, self.hot, self.sinks, self.shares, self.pads = codecs.split(","), hot, sinks, shares, pads
        self.start, self.means, self.dim = 0, {}, dim

    def update(self, key_states, value_states, *args, **kwargs):
        held = self.get_seq_length()
        keys, values = super().update(key_states, value_states)
        out = tuple(self.told(side, x) for side, x in enumerate((keys, values)))
        old, total = self.start, held + key_states.shape[-2]
        self.start += max(total - self.start - self.hot, 0) // 64 * 64
        for row in range(len(keys)):
            first = self.pads[row] + self.sinks
            if first >= old and self.start > first and (row, 0) not in self.means:
                for side, x in enumerate((keys, values)):
                    self.means[row, side] = self.mean(side, x[row, :, first : self.start].float()).to(x.dtype)
        return out

    def mean(self, side, x):
        mean = x.mean(1, keepdim=True)
        share = (mean**2).sum(-1, keepdim=True) / (x**2).sum(-1, keepdim=True).mean(1, keepdim=True)
        least = self.shares[side]
        return mean * 0 if least is None else torch.where(share >= least, mean, 0)

    def told(self, side, x):
        x, codec = x.clone(), tqkv.Codec(self.codecs[side % len(self.codecs)], self.dim)
        for row in range(len(x)):
            coded = x[row, :, self.pads[row] + self.sinks : self.start]
            if coded.shape[1]:
                mean = self.means[row, side].float()
                less = (coded.float() - mean).cpu()
                coded.copy_(codec.decode(codec.encode(less), torch.float32).to(x.device) + mean)
        return x


def reference(model, kv, pads, **options):
    cache = DynamicCache(config=model.config)
    cache.layers = [Reference(kv, pads=pads, **options) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


@torch.no_grad()
def logits(model, cache, ids, implementation, **options):
    model.set_attn_implementation(implementation)
    return model(ids, past_key_values=cache, **options).logits.float()


def steps(model, cache, inputs, implementation, pieces):
    """Logits of the pieces of a text."""
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    out, first = [], 0
    for piece in pieces:
        end = first + piece
        out.append(logits(model, cache, ids[:, first:end], implementation, attention_mask=seen[:, :end])[:, -1])
        first = end
    return torch.stack(out)


def distance(got, want):
    return ((got - want).norm() / want.norm()).item()


def on_device(cache):
    return [layer.there for layer in cache.layers if isinstance(layer, _tf_layer.TqkvLayer)]


KINDS = [
    # Codecs, window, sinks, centring and its shares, padding, and pieces of a prompt. Soon after it a group leaves the window.
    ("s4", 8, 4, "auto", (0.05, 0.45), (0, 0), (60, 74)),
    ("s4", 8, 4, "auto", (0.05, 0.45), (0, 23), (135,)),
    # The second row begins to be coded one group before the first, which is in the second one by then.
    ("s4", 8, 4, "auto", (0.05, 0.45), (66, 0), (80, 54)),
    ("i8,s3", 0, 0, "on", (0.0, 0.45), (0, 23), (60, 66)),
    ("s4", 70, 2, "off", (None, None), (0, 23), (60, 71)),
    ("s2,s3", 8, 4, "auto", (0.05, 0.45), (0, 23), (60, 74)),
    ("t3,t2", 8, 4, "auto", (0.05, 0.45), (0, 23), (60, 74)),
]


@pytest.mark.parametrize("kv, hot, sinks, centring, shares, pads, prompts", KINDS)
def test_logits_are_those_of_the_decoded_codes(place, kv, hot, sinks, centring, shares, pads, prompts):
    if kv[0] == "t" and place.gpu and not os.environ.get("TQKV_EXHAUSTIVE"):
        pytest.skip("the fake driver takes half a minute to search trellis codes")
    model, inputs = make(place), prompt(place, tokens=150, pads=pads)
    cache = TqkvCache(model.config, kv=kv, hot=hot, sinks=sinks, centring=centring)
    # Then tokens one by one over the end of a group, and several at once.
    pieces, end = [*prompts, 1, 1, 1, 1, 3, 7], sum(prompts)
    got = steps(model, cache, inputs, "tqkv", pieces)
    want = steps(model, reference(model, kv, pads, hot=hot, sinks=sinks, shares=shares), inputs, "sdpa", pieces)
    assert all(rows is not None and rows.is_coded for rows in on_device(cache))
    for step, (one, other) in enumerate(zip(got, want)):
        assert distance(one, other) < place.near, step
    for rows in on_device(cache):
        means = [x[:, :, _tf_device.MEAN].flatten(2).abs().amax((0, 2)) > 0 for x in rows.exact]
        assert bool(means[0][1]) == (centring != "off"), "the mean of keys"
        assert bool(means[1][0]) == (shares[1] is not None), "the mean of values"
    # Codes matter: without them the result is another one.
    if place.dtype == torch.float32:
        exact = steps(model, DynamicCache(config=model.config), inputs, "sdpa", pieces)
        assert distance(got[-1], exact[-1]) > 10 * distance(got[-1], want[-1])
    assert on_device(cache)[0].start > (end - hot) // 64 * 64
    # Keys of any other implementation are the decoded ones. It does not tell the cache what padding is.
    again = TqkvCache(model.config, kv=kv, hot=hot, sinks=sinks, centring=centring)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = steps(model, again, inputs, "sdpa", pieces)
    want = steps(model, reference(model, kv, (0, 0), hot=hot, sinks=sinks, shares=shares), inputs, "sdpa", pieces)
    assert distance(plain, want) < place.near


def test_greedy_tokens_are_those_of_the_decoded_codes(place, monkeypatch):
    # A prompt that is encoded in pieces.
    monkeypatch.setattr(_tf_device, "MOST", 50)
    model, inputs = make(place), prompt(place, tokens=128)
    expected = reference(model, "s4", (0, 23), hot=8)
    caches = (TqkvCache(model.config, kv="s4", hot=8), "tqkv"), (expected, "sdpa")
    tokens = []
    for cache, implementation in caches:
        model.set_attn_implementation(implementation)
        tokens.append(model.generate(**inputs, past_key_values=cache, max_new_tokens=12, do_sample=False))
    if place.dtype == torch.float32:
        assert torch.equal(*tokens)
    else:
        assert torch.equal(tokens[0][:, :129], tokens[1][:, :129])


def test_long_prompts_and_wide_heads(place):
    if place.gpu:
        pytest.skip("it takes minutes on the fake driver")
    config = LlamaConfig(**{**SIZES, "head_dim": 128, "num_attention_heads": 8, "max_position_embeddings": 8192})
    model, inputs = make(place, config), prompt(place, tokens=3208, pads=(0, 700))
    pieces = [2000, 1200, 1, 1, 1, 5]
    for kv in ("s4", "i8,s3"):
        cache = TqkvCache(model.config, kv=kv)
        got = steps(model, cache, inputs, "tqkv", pieces)
        assert on_device(cache)[0].start == 3136
        want = steps(model, reference(model, kv, (0, 700), dim=128), inputs, "sdpa", pieces)
        assert distance(got, want) < place.near


def test_learned_sinks_and_another_scale(place):
    config = GptOssConfig(
        **{**SIZES, "num_hidden_layers": 2}, num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention", "full_attention"]
    )
    model, inputs = make(place, config), prompt(place, tokens=100, pads=(0, 10))
    # Experts are not what is tested, and on a GPU their fast product wants other shapes.
    model.set_experts_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.sinks.data = torch.linspace(-1, 3, 4).to(layer.self_attn.sinks)
        layer.self_attn.scaling = 0.2
    pieces = [50, 40, 1, 1, 5]
    cache = TqkvCache(model.config, kv="s4", hot=8)
    got = steps(model, cache, inputs, "tqkv", pieces)
    assert all(rows is not None and rows.is_coded for rows in on_device(cache))
    want = steps(model, reference(model, "s4", (0, 10), hot=8), inputs, "eager", pieces)
    assert distance(got, want) < place.near
    # A decode step before there are codes.
    short, other = TqkvCache(model.config, kv="s4"), DynamicCache(config=model.config)
    got, want = (steps(model, each, inputs, how, [20, 1, 2]) for each, how in ((short, "tqkv"), (other, "eager")))
    assert distance(got, want) < place.near


def test_a_crop_is_starting_over(place):
    model, inputs = make(place), prompt(place, tokens=110)
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    for cut in (5, 60):
        cropped, fresh = (TqkvCache(model.config, kv="s4", hot=8) for _ in range(2))
        logits(model, cropped, ids[:, :95], "tqkv", attention_mask=seen[:, :95])
        cropped.crop(-cut)
        assert cropped.get_seq_length() == 95 - cut
        if cut == 5:
            # Only the window has lost tokens.
            logits(model, fresh, ids[:, :90], "tqkv", attention_mask=seen[:, :90])
        else:
            # Codes stay codes, of which the rest is held in main memory's way as well.
            fresh = copy.deepcopy(cropped)
        for first, end in ((95 - cut, 96 - cut), (96 - cut, 110 - cut), (110 - cut, 111 - cut)):
            got, want = (
                logits(model, cache, ids[:, first:end], how, attention_mask=seen[:, :end])[:, -1]
                for cache, how in ((cropped, "tqkv"), (fresh, "sdpa"))
            )
            assert distance(got, want) < place.near
    cropped.crop(-1000)
    assert cropped.get_seq_length() == 0
    got, want = (steps(model, cache, inputs, "tqkv", [100, 1, 1]) for cache in (cropped, TqkvCache(model.config, kv="s4", hot=8)))
    assert distance(got, want) < place.near


def test_rows_move_as_the_library_moves_them(place):
    model, inputs = make(place), prompt(place, 3, 100, (0, 23, 90))
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    moves = {
        "reorder_cache": (torch.tensor([2, 0, 2], device=place.device), [2, 0, 2]),
        "batch_repeat_interleave": (2, [0, 0, 1, 1, 2, 2]),
        "batch_select_indices": (torch.tensor([1, 2], device=place.device), [1, 2]),
    }
    for move, (argument, rows) in moves.items():
        moved, fresh = TqkvCache(model.config, kv="s4", hot=8), TqkvCache(model.config, kv="s4", hot=8)
        logits(model, moved, ids[:, :100], "tqkv", attention_mask=seen[:, :100])
        getattr(moved, move)(argument)
        logits(model, fresh, ids[rows, :100], "tqkv", attention_mask=seen[rows, :100])
        for token in range(2):
            new = torch.arange(len(rows), device=place.device)[:, None] + 20 * token + 1
            mask = torch.nn.functional.pad(seen[rows, :100], (0, token + 1), value=1)
            got, want = (logits(model, cache, new, "tqkv", attention_mask=mask) for cache in (moved, fresh))
            assert distance(got, want) < place.near, move


def test_beams_and_contrasts(place):
    model, inputs = make(place), prompt(place, tokens=90, pads=(0, 11))
    model.set_attn_implementation("tqkv")
    cache = TqkvCache(model.config, kv="s4", hot=8)
    got = model.generate(**inputs, past_key_values=cache, num_beams=3, max_new_tokens=4, do_sample=False)
    assert all(rows.batch == 6 and rows.is_coded for rows in on_device(cache))
    model.set_attn_implementation("sdpa")
    # Each beam has the padding of its row.
    expected = reference(model, "s4", [0, 0, 0, 11, 11, 11], hot=8)
    want = model.generate(**inputs, past_key_values=expected, num_beams=3, max_new_tokens=4, do_sample=False)
    if place.dtype == torch.float32:
        assert torch.equal(got, want)


def test_a_fork_goes_its_own_way_and_a_file_keeps_everything(place, tmp_path):
    model, inputs = make(place), prompt(place, tokens=150)
    cache = TqkvCache(model.config, kv="s4", hot=8)
    steps(model, cache, inputs, "tqkv", [99, 1])
    cache.save(tmp_path / "cache")
    loaded, forked, pickled = TqkvCache(model.config, kv="s4", hot=8), cache.fork(), pickle.loads(pickle.dumps(cache))
    loaded.restore_from(tmp_path / "cache")
    assert loaded.get_seq_length() == 100
    saved_again = tmp_path / "again"
    loaded.save(saved_again)
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    # The fork takes other tokens; the others go on as if it were not there.
    logits(model, forked, torch.flip(ids, [1])[:, :40], "tqkv", attention_mask=torch.cat([seen[:, :100], seen[:, -40:]], 1))
    want = None
    for other in (cache, loaded, pickled):
        out = [logits(model, other, ids[:, at : at + 1], "tqkv", attention_mask=seen[:, : at + 1]) for at in range(100, 103)]
        want = out if want is None else want
        assert distance(torch.stack(out), torch.stack(want)) < 1e-6
    other = TqkvCache(model.config, kv="s3", hot=8)
    with pytest.raises(tqkv.TqkvError, match="tokens of the layout .* are not valid: expected .* s3.*, that of this cache"):
        other.restore_from(saved_again)
    assert other.get_seq_length() == 0
    # What moves before it goes on.
    loaded.restore_from(saved_again)
    loaded.crop(-2)
    loaded.batch_select_indices(torch.tensor([1], device=place.device))
    assert loaded.get_seq_length() == 98 and loaded.layers[0].keys.shape == (1, 2, 98, DIM)


def test_a_mask_is_heeded_or_shows(place):
    model, inputs = make(place), prompt(place, tokens=160)
    ids, seen = inputs["input_ids"], inputs["attention_mask"].clone()
    # A second text after padding: the mask of a prompt is read, and then decoded keys are attended to.
    seen[1, 100:120] = 0
    pieces = [100, 28, 1, 1]
    got = steps(model, TqkvCache(model.config, kv="s4", hot=8), {"input_ids": ids, "attention_mask": seen}, "tqkv", pieces)
    want = steps(model, reference(model, "s4", (0, 23), hot=8), {"input_ids": ids, "attention_mask": seen}, "sdpa", pieces)
    assert distance(got, want) < place.near
    # A mask that changes between two tokens is not read: its row has no result.
    cache = TqkvCache(model.config, kv="s4", hot=8)
    seen = inputs["attention_mask"].clone()
    steps(model, cache, inputs, "tqkv", [129, 1])
    seen[1, 100] = 0
    out = logits(model, cache, ids[:, 130:131], "tqkv", attention_mask=seen[:, :131])
    assert out[0].isfinite().all() and out[1].isnan().all()
    # A mask of four dimensions is that of the decoded keys.
    mask = torch.ones(2, 1, 1, 132, dtype=torch.bool, device=place.device)
    assert logits(model, cache, ids[:, 131:132], "tqkv", attention_mask=mask)[0].isfinite().all()


def test_what_a_device_has_not_goes_through_main_memory_with_a_reason(place, monkeypatch):
    model, inputs = make(place), prompt(place, tokens=30)
    for kv, options, reason in [
        ("s4", {"tier": "256:s2"}, "only it has tier=256:s2"),
        ("s4", {"sliding_window": 64}, "only it has sliding-window=64"),
        ("s4", {"soft_cap": 30.0}, "only it has soft-cap=30"),
        ("f16", {}, "keys: codec f16 has no kernels; expected"),
    ]:
        cache = TqkvCache(model.config, kv=kv, **options)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            steps(model, cache, inputs, "tqkv", [20, 1])
        said = [str(one.message) for one in said if "main memory" in str(one.message)]
        assert len(said) == 1 and reason in said[0] and said[0].startswith("keys and values go through main memory, because "), said
        assert on_device(cache) == [None, None] and len(cache.layers[0].rows) == 2
    monkeypatch.delattr(_native, "Paged")
    with pytest.warns(UserWarning, match="because this package was built without the feature cuda"):
        steps(model, TqkvCache(model.config, kv="s4"), inputs, "tqkv", [20])


@pytest.mark.parametrize("implementation", ["tqkv", "sdpa"])
def test_a_compiled_model(place, implementation):
    model, inputs = make(place), prompt(place, tokens=100, pads=(0, 0))
    torch.compiler.reset()
    results = []
    # Decoded keys break graphs, codes do not.
    for step in (model, torch.compile(model, backend="eager", fullgraph=implementation == "tqkv")):
        cache = TqkvCache(model.config, kv="s4", hot=8)
        pieces = inputs["input_ids"][:, :92].split((90, 1, 1), 1)
        results.append([logits(step, cache, piece, implementation) for piece in pieces][-1])
        assert None not in on_device(cache) and cache.get_seq_length() == 92
    assert distance(*results) < place.near
    torch.compiler.reset()


def test_inference_mode_and_gradients_leave_nothing_in_the_cache(place):
    model, inputs = make(place), prompt(place, tokens=150)
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    caches = [TqkvCache(model.config, kv="s4", hot=8) for _ in range(2)]
    want = steps(model, caches[0], inputs, "tqkv", [134, 1, 1, 1])
    model.set_attn_implementation("tqkv")
    with torch.inference_mode():
        model(ids[:, :134], past_key_values=caches[1], attention_mask=seen[:, :134])
    # A step with gradients attends to decoded keys.
    model(ids[:, 134:135], past_key_values=caches[1], attention_mask=seen[:, :135]).logits.sum().backward()
    weight = model.model.layers[0].self_attn.k_proj.weight
    assert weight.grad is not None and weight.grad.isfinite().all() and weight.grad.any()
    assert not any(x.requires_grad for rows in on_device(caches[1]) for x in rows.exact)
    with torch.inference_mode():
        got = [model(ids[:, at : at + 1], past_key_values=caches[1], attention_mask=seen[:, : at + 1]).logits[:, -1].float() for at in (135, 136)]
    assert distance(torch.stack(got), want[-2:]) < place.near


def test_statistics_count_the_device(place):
    model, inputs = make(place), prompt(place, tokens=120)
    cache = TqkvCache(model.config, kv="s4", hot=8)
    assert cache.stats()["ratio"] == 1.0
    steps(model, cache, inputs, "tqkv", [120])
    stats = cache.stats()
    assert stats["tokens"] == 120 and stats["bytes"] == sum(rows.bytes() for rows in on_device(cache)) > 0
    assert stats["f16_bytes"] == 2 * 2 * (120 + 97) * 2 * 2 * DIM
    assert stats["refused_layers"] == 0
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.stats()["bytes"] == 0
    # A key that is not finite is refused when it becomes codes, and no other token is harmed.
    model.set_attn_implementation("sdpa")
    keys = torch.randn(2, 2, 80, DIM, device=place.device, dtype=place.dtype)
    keys[1, 0, 9, 5] = torch.nan
    cache.update(keys, keys.nan_to_num(), 0)
    assert cache.stats()["refused_layers"] == 1
    assert cache.layers[0].keys.isfinite().all()


class Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in "launches warps copies_in bytes_in bytes_out pageable waits allocations modules events".split()
    ]


READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "item", "unique")


class Closed(Device):
    """The device of paper, which nothing leaves."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, given = func.__name__.split(".")[0], [x for x in args if isinstance(x, torch.Tensor)]
        here = any(isinstance(x, OnDevice) for x in given)
        assert not (here and name in READS), f"{name} reads from the device"
        to = (kwargs or {}).get("device")
        assert not (here and to is not None and torch.device(to).type != "cuda"), f"{name} leaves the device"
        if name == "copy_":
            assert len({isinstance(x, OnDevice) for x in given}) == 1, "a copy between main memory and the device"
        self.calls.append(name)
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_nothing_of_a_decode_step_leaves_the_device(monkeypatch):
    gpu = fake(monkeypatch, lambda tensor: getattr(tensor, "held", tensor))
    torch._C._ensureCUDADeviceGuardSet()
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    place = Place("cpu", torch.float32, REAL["float32"])
    model, inputs = make(place), prompt(place, tokens=138)
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    with Device():
        there = moved(model)
        cache = TqkvCache(there.config, kv="s4", hot=8)
        logits(there, cache, ids[:, :133].to(DEVICE), "tqkv", attention_mask=seen[:, :133].to(DEVICE))
    assert all(rows.is_coded for rows in on_device(cache))

    def refuse(*_):
        raise AssertionError("a value of the device is read")

    for name in ("tolist", "__bool__", "item", "cpu", "numpy", "__int__", "__float__"):
        monkeypatch.setattr(OnDevice, name, refuse, raising=False)
    steps_of = [ids[:, at : at + 1].to("cpu") for at in range(133, 138)]
    before, after = Counts(), Counts()
    gpu.driver.tqkv_fake_counts(ctypes.byref(before))
    out, calls = [], []
    for at, one in enumerate(steps_of, 133):
        with Device():
            token, mask = one.to(DEVICE), seen[:, : at + 1].to(DEVICE)
        with Closed() as closed:
            there.set_attn_implementation("tqkv")
            with torch.no_grad():
                out.append(there(token, past_key_values=cache, attention_mask=mask).logits)
        calls.append(closed.calls)
    gpu.driver.tqkv_fake_counts(ctypes.byref(after))
    assert (after.bytes_out, after.copies_in, after.waits) == (before.bytes_out, before.copies_in, before.waits)
    # A group has left within these steps.
    assert on_device(cache)[0].start == 128
    # Both layers share the plan, of which there is one for a number of codes, and the bias of a step.
    assert sum(names.count("paged_plan") for names in calls) == 2
    assert all(names.count("masked_fill_") == 2 for names in calls)
    # What a layer does: two copies, products, the scale, the softmax, the product with values, and the merge with codes. It launches
    # three kernels of codes too, and casts the weights where the model is in half precision.
    views = {"detach", "slice", "view", "select", "transpose", "unsqueeze", "empty", "empty_like", "expand", "_unsafe_view"}
    second = calls[1][calls[1].index("addcmul") + 1 :]
    second = [name for name in second[second.index("copy_") : second.index("addcmul") + 1] if name not in views]
    assert second == ["copy_", "copy_", "bmm", "add", "add_", "_softmax", "bmm", "addcmul"]
    for logits_of_step in out:
        assert logits_of_step.held.isfinite().all()
