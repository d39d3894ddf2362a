"""A `TqkvCache` and codecs for tensors on a device: they go through main memory, or are refused in one line.

The device is made of paper: its tensors hold their values in main memory, but compute only with each other, and tell their values to
nothing but a copy."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tqkv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from tqkv.transformers import TqkvCache
from transformers import AutoModelForCausalLM, LlamaConfig

DEVICE = torch.device("cuda:0")


class OnDevice(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=DEVICE, strides=held.stride())

    def __init__(self, held):
        self.held = held

    def __repr__(self):
        return f"OnDevice({self.held})"

    def tolist(self):
        return self.held.tolist()

    def __bool__(self):
        return bool(self.held)

    def as_subclass(self, cls):
        """Only the shape counts: a handle of the cache has the tensor itself next to it."""
        return torch.empty(self.shape, dtype=self.dtype).as_subclass(cls)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} outside the device")


class Device(TorchDispatchMode):
    """Runs what its tensors compute. Without a copy, a tensor in main memory of more than one value cannot take part."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        here = any(isinstance(x, OnDevice) for x in given)
        to = kwargs.get("device")
        copies = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        stray = [x.shape for x in given if not isinstance(x, OnDevice) and x.dim()]
        assert copies or not (here and stray), f"{func} of tensors in main memory and on the device: {stray}"
        if to is not None:
            kwargs["device"] = "cpu"
            here = torch.device(to).type == DEVICE.type
        held = {}

        def inner(x):
            if isinstance(x, OnDevice):
                held[id(x.held)] = x
                return x.held
            return x

        out = func(*tree_map(inner, args), **tree_map(inner, kwargs))

        def outer(x):
            if not isinstance(x, torch.Tensor):
                return x
            return held[id(x)] if id(x) in held else OnDevice(x) if here else x

        return tree_map(outer, out)


@pytest.fixture
def device(monkeypatch):
    """PyTorch believes in its driver."""
    torch._C._ensureCUDADeviceGuardSet()
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    made = torch.tensor

    def tensor(data, *given, device=None, **named):
        x = made(data, *given, **named)
        return x if device is None or torch.device(device).type != DEVICE.type else OnDevice(x)

    # PyTorch 2.13 asks the driver before the mode below sees the call.
    monkeypatch.setattr(torch, "tensor", tensor)
    with Device():
        yield DEVICE


def llama():
    torch.manual_seed(3)
    sizes = dict(vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, head_dim=32), dtype=torch.float32, attn_implementation="eager")
    # Sharper than initial weights, so that attention matters.
    for parameter in model.parameters():
        parameter.data *= 1.5
    return model.eval()


def prompt(rows, tokens):
    return torch.randint(1, 211, (rows, tokens), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def logits(model, cache, ids, implementation, **options):
    model.set_attn_implementation(implementation)
    return model(ids, past_key_values=cache, **options).logits


def moved(model):
    """A copy of a model whose tensors are on the device."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for tensors, wrap in ((module._parameters, lambda x: torch.nn.Parameter(x, False)), (module._buffers, lambda x: x)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = wrap(OnDevice(tensor.detach()))
    return model


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
@pytest.mark.parametrize("pads", [(0, 0), (0, 13)])
def test_a_model_on_a_device_predicts_what_it_does_in_main_memory(device, implementation, pads):
    model = llama()
    there, ids = moved(model), prompt(2, 100)
    seen = (torch.arange(100) >= torch.tensor(pads)[:, None]).long()
    cache, expected = TqkvCache(model.config, kv="t4,t3", hot=16), TqkvCache(model.config, kv="t4,t3", hot=16)
    # A prompt in two pieces, and tokens.
    for first, end in ((0, 60), (60, 98), (98, 99), (99, 100)):
        want = logits(model, expected, ids[:, first:end], implementation, attention_mask=seen[:, :end])
        got = logits(there, cache, ids[:, first:end].to(device), implementation, attention_mask=seen[:, :end].to(device))
        assert got.device == device
        torch.testing.assert_close(got.held, want, rtol=1e-5, atol=1e-5)
    assert cache.stats()["bytes"] == expected.stats()["bytes"]
    assert cache.layers[0].keys.device == device
    cache.reorder_cache(torch.tensor([1, 0]).to(device))
    cache.batch_select_indices(torch.tensor([True, False]).to(device))
    assert len(cache.layers[0].rows) == 1


def test_a_saved_cache_goes_on_where_the_model_is(device, tmp_path):
    model = llama()
    ids = prompt(1, 50)
    cache, loaded = TqkvCache(model.config, kv="t4,t3"), TqkvCache(model.config, kv="t4,t3")
    logits(model, cache, ids, "eager")
    cache.save(tmp_path / "cache")
    loaded.restore_from(tmp_path / "cache")
    want = logits(model, cache, ids[:, :1], "eager")
    got = logits(moved(model), loaded, ids[:, :1].to(device), "eager")
    torch.testing.assert_close(got.held, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codecs_answer_on_the_device_of_their_argument(device, dtype):
    codec = tqkv.Codec("t3", 64)
    x = torch.randn(5, 64).to(dtype)
    blocks = codec.encode(x.to(device))
    assert blocks.device == device and torch.equal(blocks.held, codec.encode(x))
    decoded = codec.decode(blocks, dtype)
    assert decoded.device == device and decoded.dtype == dtype and torch.equal(decoded.held, codec.decode(blocks.held, dtype))
    with pytest.raises(tqkv.TqkvError, match="out in this memory is not valid: expected a contiguous tensor in main memory"):
        codec.encode(x.to(device), out=blocks)


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_tensors_without_values_are_refused_in_one_line(implementation):
    with torch.device("meta"):
        model = llama()
    cache = TqkvCache(model.config)
    why = "on the device meta is not valid: expected a tensor with values"
    with pytest.raises(tqkv.TqkvError, match=why) as refused:
        logits(model, cache, torch.ones(1, 9, dtype=torch.long, device="meta"), implementation)
    assert "\n" not in str(refused.value)
    assert cache.get_seq_length() == 0
    with pytest.raises(tqkv.TqkvError, match=why):
        tqkv.Codec("t3", 64).encode(torch.empty(5, 64, device="meta"))
