"""Coded weights in tiny, random models of PyTorch and Transformers, against the same weights decoded."""

import copy
import io
import pickle
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tqkv
import tqkv.weights
from torch import nn
from tqkv.weights import CodedEmbedding, CodedLinear, encode
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen3MoeConfig,
)

SMALL = dict(
    vocab_size=211,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64)
CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL, attention_bias=True),
    "tied": lambda: LlamaConfig(**SMALL, tie_word_embeddings=True),
    # Its embedding is a class that multiplies what the class above gives.
    "gemma3": lambda: Gemma3TextConfig(**SMALL, sliding_window=16, tie_word_embeddings=True),
    # Layers are Conv1D.
    "gpt2": lambda: GPT2Config(vocab_size=211, n_embd=64, n_layer=2, n_head=2, n_positions=512, bos_token_id=1, eos_token_id=None),
    "mixtral": lambda: MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SMALL, **MOE, decoder_sparse_step=1),
    "olmoe": lambda: OlmoeConfig(**{**SMALL, "head_dim": 16}, num_experts=6, num_experts_per_tok=2),
    # Transposed, with biases, and gate and up alternate.
    "gpt_oss": lambda: GptOssConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
}


def make(name):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32, attn_implementation="eager")
    # Sharper than initial weights, so that layers matter.
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() > 1 and not name.endswith("bias")
        parameter.data = parameter.data * 2 if is_matrix else parameter.data + 0.1 * torch.randn_like(parameter)
    return model.eval()


def decoded(name, coded):
    """The same model with the weights that the codes stand for."""
    model = make(name)
    for path, module in coded.named_modules():
        if isinstance(module, tqkv.weights.CodedStack):
            weight = torch.stack([module[expert] for expert in range(len(module.matrices))])
            model.get_parameter(path).data = weight
        elif hasattr(module, "matrices"):
            model.get_parameter(path + ".weight").data = module.weight + 0.0
    return model


IDS = torch.randint(1, 211, (2, 40), generator=torch.Generator().manual_seed(5))


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


def distance(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_decoded_weights(name):
    model = make(name)
    exact = logits(model)
    report = encode(model, "t4")
    assert report.values > 0 and report.bytes < report.bytes_before / 3
    assert not [path for path in report.skipped if not path.endswith((".mlp.gate", ".gate", ".router", "wpe"))], str(report)
    of_decoded = decoded(name, model)
    # Activations have 8 bits.
    assert 1e-4 < distance(logits(model), logits(of_decoded)) < 0.05
    assert 0.02 < distance(logits(of_decoded), exact) < 0.6


def test_experts_without_a_gate():
    from types import SimpleNamespace

    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

    torch.manual_seed(1)
    made = dict(n_routed_experts=4, hidden_size=64, moe_intermediate_size=128, moe_latent_size=None, mlp_hidden_act="relu2")
    experts = NemotronHExperts(SimpleNamespace(**made, _experts_implementation="eager"))
    for parameter in experts.parameters():
        nn.init.normal_(parameter)
    x, weights = torch.randn(100, 64), torch.rand(100, 2)
    # Number 4 is an expert on another machine.
    chosen = torch.randint(0, 5, (100, 2))
    report = encode(experts, "i8")
    assert report.values == 2 * 4 * 64 * 128 and not report.skipped
    found = experts(x, chosen, weights)
    plain = NemotronHExperts(experts.config)
    for name in ("up_proj", "down_proj"):
        getattr(plain, name).data = torch.stack([getattr(experts, name)[expert] for expert in range(4)])
    assert distance(found, plain(x, chosen % 4, weights * (chosen < 4))) < 0.02


def test_the_error_falls_with_the_bits():
    exact, errors = logits(make("llama")), []
    for codec in ("i8", "t4", "t3", "t2"):
        model = make("llama")
        encode(model, codec)
        expected, found = exact.log_softmax(-1), logits(model).log_softmax(-1)
        errors.append((expected.exp() * (expected - found)).sum(-1).mean().item())
    assert errors == sorted(errors) and errors[0] < 1e-3 and errors[1] < 0.1, errors


@pytest.mark.parametrize("name", ["llama", "tied", "mixtral", "gpt_oss"])
def test_generated_tokens_are_those_of_the_decoded_weights(name):
    model = make(name)
    encode(model, "i8")
    for model_ in (model, decoded(name, model)):
        out = model_.generate(IDS.view(8, 10), max_new_tokens=12, do_sample=False, output_logits=True, return_dict_in_generate=True)
        if model_ is model:
            found = out
    two = torch.stack(out.logits).topk(2, dim=-1).values
    gap = (two[..., 0] - two[..., 1]) / torch.stack(out.logits).std(-1)
    # Up to the first near tie of a row its tokens are equal.
    clear = (gap > 0.1).cumprod(0).T.bool()
    assert clear.sum() > 12
    assert (found.sequences[:, 10:][clear] == out.sequences[:, 10:][clear]).all()


def test_a_cache_of_codes_takes_coded_layers():
    from tqkv.transformers import TqkvCache

    model = make("llama")
    encode(model)
    expected = model.generate(IDS, max_new_tokens=8, do_sample=False)
    model.set_attn_implementation("tqkv")
    assert torch.equal(model.generate(IDS, max_new_tokens=8, do_sample=False, past_key_values=TqkvCache(model.config, kv="i8")), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_takes_and_gives_each_dtype(dtype):
    torch.manual_seed(1)
    layer = nn.Linear(128, 200, dtype=dtype)
    report = encode(layer, "s4")
    assert type(layer) is CodedLinear and report.values == 200 * 128 and report.bytes_before == report.values * dtype.itemsize
    assert layer.weight.dtype == dtype and layer.weight.shape == (200, 128)
    for shape in ((128,), (0, 128), (3, 128), (2, 50, 128)):
        x = torch.randn(shape).to(dtype)
        y = layer(x)
        assert y.dtype == dtype and y.shape == (*shape[:-1], 200)
        if x.numel():
            expected = nn.functional.linear(x.float(), layer.weight.float(), layer.bias.float())
            assert distance(y.float(), expected) < 0.012
    x = torch.randn(3, 128).to(dtype)
    assert torch.equal(layer(x[:, ::2].repeat_interleave(2, 1).T.contiguous().T), layer(x[:, ::2].repeat_interleave(2, 1)))


def test_the_model_follows_another_dtype():
    model = make("tied")
    encode(model)
    exact = logits(model)
    model.bfloat16()
    assert model.model.embed_tokens(IDS).dtype == torch.bfloat16 and model.lm_head.weight.dtype == torch.bfloat16
    assert logits(model).dtype == torch.bfloat16 and distance(logits(model).float(), exact) < 0.05


def test_tied_weights_have_one_matrix():
    model = make("tied")
    encode(model)
    embedding, head = model.model.embed_tokens, model.lm_head
    assert isinstance(embedding, CodedEmbedding) and embedding.matrices[0] is head.matrices[0]
    assert head.matrices[0].codec.name == "i8" and torch.equal(embedding(IDS[0]), head.weight[IDS[0]])
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.lm_head.matrices[0] is copied.model.embed_tokens.matrices[0] is not head.matrices[0]
    left = make("tied")
    report = encode(left, head=None)
    assert report.skipped == {"model.embed_tokens": "head is None"}
    assert left.lm_head.weight is left.model.embed_tokens.weight and type(left.lm_head) is nn.Linear


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "qwen3_moe"])
def test_copies_and_pickles_compute_the_same(name):
    model = make(name)
    encode(model, "t3")
    expected = logits(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert [type(module) for module in copied.modules()] == [type(module) for module in model.modules()]
        assert torch.equal(logits(copied), expected)


@pytest.mark.parametrize("name", ["llama", "tied", "gemma3", "gpt2", "mixtral"])
def test_a_state_is_restored(name):
    model, other = make(name), make(name)
    encode(model, "t3", seed=7)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    copied = copy.deepcopy(model)
    encode(other, "s4")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    before = logits(other)
    other.load_state_dict(state)
    assert torch.equal(logits(other), logits(model)) and not torch.equal(before, logits(model))
    if name in ("tied", "gemma3"):
        assert other.lm_head.matrices[0] is other.model.embed_tokens.matrices[0]
        blocks = [value for path, value in model.state_dict().items() if path.endswith(("embed_tokens.blocks", "lm_head.blocks"))]
        assert blocks[0].data_ptr() == blocks[1].data_ptr()
    # A copy shares codes, and does not follow what the other one loads.
    model.load_state_dict(make_state(name))
    assert not torch.equal(logits(model), logits(copied)) and torch.equal(logits(copied), logits(other))


def make_state(name):
    model = make(name)
    encode(model, "i8")
    return model.state_dict()


def test_a_state_that_does_not_fit_is_an_error():
    model = make("llama")
    encode(model)
    state = model.state_dict()
    expected = logits(model)
    key = "model.layers.0.mlp.up_proj.blocks"
    for change, said in (
        (lambda s: s.pop(key), "Missing key.*up_proj.blocks"),
        (lambda s: s.update({key: s[key][:5]}), r"up_proj.blocks: a matrix of the shape \[5, 64\] is not valid: expected \[192, 64\]"),
        (lambda s: s.update({key: s[key][:, :5]}), "up_proj.blocks: blocks of the shape .* is not valid"),
        (lambda s: s.update({key: s[key].float()}), "up_proj.blocks: blocks of this type is not valid"),
        (lambda s: s.update({key[:-6] + "coding": s[key][0]}), "up_proj.blocks: a description of codes is not valid"),
    ):
        bad = dict(state)
        change(bad)
        with pytest.raises(RuntimeError, match=said):
            model.load_state_dict(bad)
    assert torch.equal(logits(model), expected)
    with pytest.raises(RuntimeError, match="Missing key.*blocks"):
        model.load_state_dict(make("llama").state_dict())


def test_save_pretrained_is_refused(tmp_path):
    model = make("llama")
    encode(model)
    with pytest.raises(tqkv.TqkvError, match="^save_pretrained is not valid for coded weights, because .*: expected torch.save"):
        model.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gradients_are_refused():
    model = make("llama")
    encode(model)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model(IDS).logits.requires_grad
    x = torch.randn(2, 64, requires_grad=True)
    layer = model.model.layers[0].mlp.up_proj
    with pytest.raises(tqkv.TqkvError, match="^gradients through coded weights are not valid: expected torch.no_grad"):
        layer(x)
    with torch.no_grad():
        assert not layer(x).requires_grad


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2"])
def test_a_compiled_model_is_one_graph(name):
    model = make(name)
    encode(model)
    expected = logits(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert distance(logits(compiled), expected) < 1e-5


def test_compiled_experts_are_a_break_in_the_graph():
    model = make("mixtral")
    encode(model)
    expected = logits(model)
    torch._dynamo.reset()
    assert distance(logits(torch.compile(model, backend="eager")), expected) < 1e-5


def test_a_weight_is_decoded_where_something_computes_with_it():
    torch.manual_seed(2)
    layer = nn.Linear(64, 128)
    before = layer.weight.detach().clone()
    encode(layer, "i8")
    assert layer.weight.device.type == "cpu" and layer.weight.dim() == 2 and layer.weight.size(1) == 64 and layer.weight.numel() == 64 * 128
    assert distance(layer.weight.T @ torch.eye(128), before.T) < 0.01
    assert distance(layer.weight.data, before) < 0.01 and distance(layer.weight.float().double(), before) < 0.01
    with pytest.raises(tqkv.TqkvError, match="^mul_ on a coded weight is not valid, because codes do not change"):
        layer.weight.mul_(2)
    with pytest.raises(tqkv.TqkvError, match="^__setitem__ on a coded weight"):
        layer.weight[0] = 0
    with pytest.raises(KeyError):
        layer.weight = nn.Parameter(before)
    # A module of PyTorch that reads the weights of its parts.
    attention = nn.MultiheadAttention(64, 2, batch_first=True).eval()
    x = torch.randn(1, 5, 64)
    with torch.no_grad():
        expected = attention(x, x, x)[0]
        assert encode(attention).values == 0
        assert torch.equal(attention(x, x, x)[0], expected)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Own(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight + 1)


def test_a_subclass_keeps_what_it_adds():
    torch.manual_seed(2)
    x = torch.randn(3, 64)
    for cls in (Doubled, Own):
        layer = cls(64, 128)
        expected = layer(x).detach()
        encode(layer, "i8")
        assert isinstance(layer, cls) and isinstance(layer, CodedLinear)
        assert 0 < distance(layer(x), expected) < 0.01
        assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))


def test_the_report_says_what_stays():
    model = nn.Sequential()
    model.odd = nn.Linear(96, 8)
    model.double = nn.Linear(64, 8, dtype=torch.float64)
    model.table = nn.Embedding(10, 64)
    model.kept = nn.Linear(64, 8)
    model.gate = nn.Linear(64, 8)
    model.conv = nn.Conv1d(64, 8, 3)
    model.nan = nn.Linear(64, 8)
    model.nan.weight.data[3, 5] = torch.nan
    model.coded = nn.Linear(64, 8)
    report = encode(model, skip=("*.gate", "gate", "kept"))
    assert report.skipped == {
        "odd": "rows of 96 values are no whole groups of 64",
        "double": "weights of float64: expected float32, float16 or bfloat16",
        "table": "it is not the embedding of the model's input",
        "kept": "skip has 'kept'",
        "gate": "skip has 'gate'",
        "conv": "a Conv1d does not multiply it as a matrix that tqkv knows",
        "nan": report.skipped["nan"],
    }
    assert "row 3 (counted from 0) cannot be coded" in report.skipped["nan"]
    assert report.values == 8 * 64 and str(report).startswith("512 values in ") and "\nodd stays: rows of 96" in str(report)
    assert encode(model, skip=("*gate", "kept", "nan")).values == 0


REFUSED = [
    (lambda m: encode(m, "t9"), "codec 't9' is not valid: expected f16, "),
    (lambda m: encode(m, 7), "codec 7 is not valid: expected a text"),
    (lambda m: encode(m, "f16"), "codec f16 is not valid for products on codes: expected one with levels"),
    (lambda m: encode(m, head="f16"), "codec f16 is not valid for products on codes"),
    (lambda m: encode(m, group=77), "dim 77: head dim not supported: accepted are "),
    (lambda m: encode(m, group=-1), "group -1 is not valid: expected a whole number"),
    (lambda m: encode(m, seed="a"), "seed 'a' is not valid: expected a whole number"),
    (lambda m: encode(m, skip="lm_head"), "skip 'lm_head' is not valid: expected patterns"),
    (lambda m: encode("model"), "model of the type str is not valid: expected a torch.nn.Module"),
    (lambda m: encode(copy.deepcopy(m).to("meta")), "on the device meta is not valid: expected a model on the CPU"),
    (lambda m: coded()(torch.zeros(3, 65)), r"activations \[3, 65\] of float32 on the device cpu are not valid: expected \[.., 64\]"),
    (lambda m: coded()(torch.zeros(3, 64, dtype=torch.float64)), "of float64 on the device cpu are not valid"),
    (lambda m: coded()(torch.zeros(3, 64, device="meta")), "on the device meta are not valid"),
    (lambda m: encoded(m).model.embed_tokens(torch.tensor([211])), "index 211 is not valid: expected 0 to 210"),
    (lambda m: encoded(m).model.embed_tokens(torch.tensor([-1])), "index -1 is not valid: expected 0 to 210"),
    (lambda m: encoded(m).model.embed_tokens(torch.tensor([0.5])), "indices of float32 on the device cpu are not valid: expected integers"),
]


def coded():
    layer = nn.Linear(64, 8)
    encode(layer)
    return layer


def encoded(model):
    model = copy.deepcopy(model)
    encode(model)
    return model


@pytest.mark.parametrize("call, text", REFUSED, ids=range(len(REFUSED)))
def test_refusals_are_one_line_that_says_what_is_accepted(call, text):
    model = make("llama")
    with pytest.raises(tqkv.TqkvError, match=text) as refused:
        call(model)
    assert "\n" not in str(refused.value)
    assert type(model.lm_head) is nn.Linear and type(model.model.layers[0].mlp.up_proj) is nn.Linear


def test_memory_is_freed_as_matrices_are_coded():
    import weakref

    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))
    weights = [weakref.ref(layer.weight) for layer in model]
    alive = []

    def seen(*_):
        alive.append(sum(weight() is not None for weight in weights))

    original = tqkv.weights.Matrix.encode
    try:
        tqkv.weights.Matrix.encode = classmethod(lambda cls, codec, weight: (seen(), original(codec, weight))[1])
        encode(model)
    finally:
        tqkv.weights.Matrix.encode = original
    # The first two calls try the codecs.
    assert alive[2:] == [5, 4, 3, 2, 1]


def test_threads_share_a_layer():
    layer = nn.Linear(512, 512)
    encode(layer)
    x = torch.randn(16, 512)
    expected, found = layer(x), []
    threads = [threading.Thread(target=lambda: found.append(layer(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(torch.equal(y, expected) for y in found)


@pytest.mark.parametrize("call", ["encode", "multiply"])
def test_the_interpreter_is_free_meanwhile(call):
    """The longest time in which another thread of Python does nothing is shorter than the call."""
    layer, x = nn.Linear(1024, 1024), torch.randn(1024, 1024)
    if call == "multiply":
        encode(layer)
    spent = []

    def work():
        start = time.perf_counter()
        encode(layer, "t4") if call == "encode" else layer(x)
        spent.append(time.perf_counter() - start)

    thread = threading.Thread(target=work)
    thread.start()
    longest, last = 0.0, time.perf_counter()
    while not spent:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    thread.join()
    assert longest < spent[0] / 2, (longest, spent)


def test_blocks_are_those_of_the_codec():
    layer = nn.Linear(192, 70)
    weight = layer.weight.detach().numpy().copy()
    encode(layer, "t3", seed=9)
    expected = tqkv.Codec("t3", 64, 9).encode(weight.reshape(70, 3, 64)).reshape(70, -1)
    np.testing.assert_array_equal(layer.state_dict()["blocks"].numpy(), expected)


@pytest.mark.parametrize("name", ["llama", "tied", "qwen3_moe", "gpt2"])
def test_a_checkpoint_is_coded_while_it_is_read(name, tmp_path):
    from tqkv.transformers import TqkvWeights

    make(name).save_pretrained(tmp_path)
    coded = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=TqkvWeights("t3", seed=7), attn_implementation="eager").eval()
    model = make(name)
    report = encode(model, "t3", seed=7)
    assert torch.equal(logits(coded), logits(model))
    found = coded.hf_quantizer.plan.report()
    assert (found.values, found.bytes, found.skipped) == (report.values, report.bytes, report.skipped)
    with pytest.raises(tqkv.TqkvError, match="^save_pretrained is not valid for coded weights"):
        coded.save_pretrained(tmp_path / "out")


def test_a_checkpoint_is_coded_weight_by_weight(tmp_path, monkeypatch):
    from tqkv._tf_weights import CodeWeight
    from tqkv.transformers import TqkvWeights

    make("llama").save_pretrained(tmp_path)
    held, convert = [], CodeWeight.convert

    def seen(self, *args, model, **kwargs):
        result = convert(self, *args, model=model, **kwargs)
        held.append(sum(value.numel() for value in model.parameters() if value.device.type == "cpu" and value.dim() > 1))
        return result

    monkeypatch.setattr(CodeWeight, "convert", seen)
    coded = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=TqkvWeights())
    # Two layers of seven, embedding and head: none waits until others are read.
    assert held == [0] * 16
    assert not any(value.device.type == "meta" for value in coded.parameters())


def test_what_from_pretrained_cannot_do_is_refused(tmp_path):
    from tqkv._tf_weights import TqkvQuantizer
    from tqkv.transformers import TqkvWeights

    model = make("llama")
    model.save_pretrained(tmp_path)
    with pytest.raises(tqkv.TqkvError, match="^codec 't9' is not valid"):
        TqkvWeights("t9")
    with pytest.raises(tqkv.TqkvError, match="^options bits are not valid: expected codec, group, head, skip and seed"):
        TqkvWeights(bits=4)
    for places in ("cuda:0", {"": "cuda:0"}, {"model": "cpu", "lm_head": torch.device("cuda:1")}):
        with pytest.raises(tqkv.TqkvError, match="^device_map .*cuda.* is not valid for coded weights: expected the CPU"):
            TqkvQuantizer(TqkvWeights(), pre_quantized=False).validate_environment(device_map=places)
    model.config.quantization_config = TqkvWeights()
    model.config.save_pretrained(tmp_path)
    with pytest.raises(tqkv.TqkvError, match="^a folder of coded weights is not valid: expected the weights"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
