"""Models that lm-eval and kvpress drive."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")
pytest.importorskip("kvpress")

import lm_eval
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import tqkv
from tqkv.transformers import TqkvCache
from tqkv.yardstick import kvpress_pipeline, lm_eval_model

WORDS = 96
KV = "s2 hot=4 sinks=0"


@pytest.fixture
def model():
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=512, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    # Random weights of the usual size predict all tokens alike.
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    return model


@pytest.fixture
def tokenizer():
    names = ["<s>", "</s>", "<unk>", *(f"w{i}" for i in range(3, WORDS))]
    words = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", model_max_length=512)


def text(seed: int, count: int) -> str:
    return " ".join(f"w{3 + (7 * i * i + seed) % (WORDS - 3)}" for i in range(count))


def scores(lm, context: str, answer: str) -> float:
    request = Instance("loglikelihood", {}, (context, answer), 0)
    return lm.loglikelihood([request], disable_tqdm=True)[0][0]


def by_hand(model, tokenizer, kv: str, context: str, answer: str, step: int) -> float:
    """Log likelihood of an answer whose tokens, and those of the context, come `step` at a time."""
    ids = torch.tensor([tokenizer(f"{context} {answer}", add_special_tokens=False).input_ids])
    model.set_attn_implementation("tqkv")
    cache, parts = TqkvCache(model.config, kv=kv), []
    with torch.no_grad():
        for part in ids[:, :-1].split(step, dim=1):
            parts.append(model(part, past_key_values=cache).logits)
    logits = torch.cat(parts, dim=1)[0].log_softmax(-1)
    count = len(answer.split())
    return float(logits[-count:].gather(1, ids[0, -count:, None]).sum())


def test_likelihoods_are_those_of_a_text_that_reads_codes(model, tokenizer):
    context, answer = text(1, 120), " " + text(2, 3)
    coded = scores(lm_eval_model(model, tokenizer, KV, step=8), context, answer)
    assert coded == pytest.approx(by_hand(model, tokenizer, KV, context, answer, 8), abs=1e-4)
    exact = scores(lm_eval_model(model, tokenizer, "f16", step=8), context, answer)
    assert abs(coded - exact) > 0.01, "codes are seen"
    # One pass without a cache is what lm-eval does.
    plain = lm_eval.models.huggingface.HFLM(pretrained=model, tokenizer=tokenizer)
    assert exact == pytest.approx(scores(plain, context, answer), abs=0.05)
    whole = scores(lm_eval_model(model, tokenizer, KV, step=4096), context, answer)
    assert whole == pytest.approx(scores(plain, context, answer), abs=1e-3), "a text in one pass would not show the codec"


def test_generated_answers_read_codes(model, tokenizer):
    context = text(3, 100)
    request = Instance("generate_until", {}, (context, {"until": [], "max_gen_toks": 6, "do_sample": False}), 0)
    (said,) = lm_eval_model(model, tokenizer, KV, step=8).generate_until([request], disable_tqdm=True)
    cache = TqkvCache(model.config, kv=KV)
    ids = torch.tensor([tokenizer(context, add_special_tokens=False).input_ids])
    made = model.generate(ids, past_key_values=cache, prefill_chunk_size=8, max_new_tokens=6, do_sample=False)
    assert said.split() == tokenizer.decode(made[0, 100:], skip_special_tokens=True).split()
    assert len(said.split()) > 1


def test_a_task_of_a_file_is_scored(model, tokenizer, tmp_path):
    documents = [{"text": text(seed, 40), "choices": [text(seed, 2), text(seed + 9, 2)], "gold": 0} for seed in range(3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    task = {
        "task": "choices", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "test.jsonl")}},
        "test_split": "test", "num_fewshot": 0, "output_type": "multiple_choice", "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    lm = lm_eval_model(model, tokenizer, KV)
    found = lm_eval.simple_evaluate(lm, tasks=[task], bootstrap_iters=0)["results"]["choices"]["acc,none"]
    first = [scores(lm, each["text"], " " + each["choices"][0]) > scores(lm, each["text"], " " + each["choices"][1]) for each in documents]
    assert found == pytest.approx(sum(first) / 3)


def test_each_question_of_a_context_finds_it_as_it_was(model, tokenizer):
    context, questions = text(4, 90), [text(5, 4), text(6, 4), text(5, 4)]
    pipeline = kvpress_pipeline(model, tokenizer, KV)
    answers = pipeline(context, questions=questions, max_new_tokens=6)["answers"]
    assert answers[0] == answers[2]
    alone = kvpress_pipeline(model, tokenizer, KV)(context, question=questions[1], max_new_tokens=6)["answer"]
    assert answers[1] == alone
    with pytest.raises(tqkv.TqkvError, match="a press or a cache is not valid here: expected none"):
        pipeline(context, question=questions[0], cache=TqkvCache(model.config))


def test_what_no_cache_can_be_is_refused_before_a_task(model, tokenizer):
    with pytest.raises(tqkv.TqkvError, match="step=0 is not valid: expected 1 or more"):
        lm_eval_model(model, tokenizer, KV, step=0)
    with pytest.raises(tqkv.TqkvError, match="t9"):
        lm_eval_model(model, tokenizer, "t9")
    with pytest.raises(tqkv.TqkvError, match="t9"):
        kvpress_pipeline(model, tokenizer, "t9")


@pytest.fixture
def dropping():
    """examples/dropping.py."""
    path = Path(__file__).parent.parent / "examples" / "dropping.py"
    spec = importlib.util.spec_from_file_location("dropping", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["dropping"] = module
    spec.loader.exec_module(module)
    return module


def window(dropping, tokenizer):
    ids = [tokenizer(text(seed, count), add_special_tokens=False).input_ids for seed, count in ((7, 140), (8, 6), (9, 20))]
    return dropping.Window(*ids)


def test_nothing_is_lost_where_nothing_is_dropped(model, tokenizer, dropping):
    with torch.no_grad():
        caches, sizes = dropping.answers(model, window(dropping, tokenizer), "f16,f16")
    for name in ("asked", "unasked"):
        assert dropping.kl(caches["f16"], caches[name]) < 1e-6
        assert sizes[name] == sizes["f16"] == 2 * 2 * 2 * 64


def test_tokens_are_dropped_by_the_rule_of_snapkv(model, tokenizer, dropping):
    asks = window(dropping, tokenizer)
    with torch.no_grad():
        caches, sizes = dropping.answers(model, asks, KV)
    for name in ("asked", "unasked"):
        assert dropping.kl(caches["f16"], caches[name]) > 1e-3
        assert 0.97 * sizes[KV] < sizes[name] <= sizes[KV] < 0.5 * sizes["f16"], "as many bytes"
    ids, end, kept = torch.tensor([asks.text]), len(asks.text), dropping.DynamicCache()
    press = dropping.Keeping(compression_ratio=0.6, ends=[end], kept=[kept])
    full = dropping.DynamicCache()
    model.set_attn_implementation("eager")
    with torch.no_grad(), press(model):
        weights = model(ids, past_key_values=full, output_attentions=True).attentions
    for layer in range(2):
        # The last 32 queries' attention to the tokens before them, averaged over them and over the two query heads.
        given = weights[layer][0, :, -32:, :-32].mean(1)
        pooled = torch.nn.functional.avg_pool1d(given, 7, padding=3, stride=1).mean(0)
        count = int(0.4 * end)
        expected = {*pooled.topk(count - 32).indices.tolist(), *range(end - 32, end)}
        keys = full.layers[layer].keys[0, 0]
        found = {int((keys - key).abs().sum(-1).argmin()) for key in kept.layers[layer].keys[0, 0]}
        assert found == expected
