"""Runs three small tasks of lm-eval and the questions of kvpress over a model with compressed caches:

    pip install lm_eval kvpress
    python3 examples/tasks.py FOLDER --kv t4,t2 --kv tiny

The tasks need no network: their texts are made here from a seed, of words of this file. Each context is a list of facts with a question
about one of them. `numbers` generates the answer, `choices` scores four answers of which one is right, and `again` is the perplexity of
a list that comes twice. `kvpress` asks several questions about one context. f16 comes first, and a row where it has fewer than half of the
answers says nothing about a cache.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import lm_eval
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tqkv.yardstick import kvpress_pipeline, lm_eval_model

PLACES = "harbour mill tower bridge market garden station castle library museum bakery theatre school chapel forge orchard".split()
COLOURS = "red green blue white black yellow silver brown".split()
NUMBER = r"\d{4}"


def facts(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Different names, each with a number."""
    names = [f"{colour} {place}" for colour in COLOURS for place in PLACES]
    return [(name, str(rng.randrange(1000, 10000))) for name in rng.sample(names, count)]


def told(pairs: list[tuple[str, str]]) -> str:
    return "".join(f"The code of the {name} is {number}.\n" for name, number in pairs)


def rows(seed: int, samples: int, count: int) -> list[dict[str, Any]]:
    """Documents of all tasks: a context, the name that is asked for, its number and three others."""
    made = []
    for sample in range(samples):
        rng = random.Random(f"{seed} {sample}")
        pairs = facts(rng, count)
        name, number = pairs[rng.randrange(count)]
        choices = [number, *rng.sample([other for _, other in pairs if other != number], 3)]
        rng.shuffle(choices)
        text = told(pairs)
        made.append({"text": text, "name": name, "number": number, "choices": choices, "gold": choices.index(number), "again": f"{text}\n{text}"})
    return made


def tasks(file: Path) -> list[dict[str, Any]]:
    """The tasks as lm-eval has them in YAML."""
    asks = "{{text}}\nThe code of the {{name}} is"
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(file)}}, "test_split": "test", "num_fewshot": 0}
    found = [{"function": "regex", "regex_pattern": f"({NUMBER})"}, {"function": "take_first"}]
    return [
        {**common, "task": "numbers", "output_type": "generate_until", "doc_to_text": asks, "doc_to_target": "{{number}}",
         "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8}, "filter_list": [{"name": "number", "filter": found}],
         "metric_list": [{"metric": "exact_match"}]},
        {**common, "task": "choices", "output_type": "multiple_choice", "doc_to_text": asks, "doc_to_choice": "{{choices}}",
         "doc_to_target": "{{gold}}", "metric_list": [{"metric": "acc"}]},
        {**common, "task": "again", "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{again}}",
         "metric_list": [{"metric": "word_perplexity"}]},
    ]  # fmt: skip


def pressed(pipeline: Any, documents: list[dict[str, Any]]) -> float:
    """Share of right answers to questions about one context each, of which there are three."""
    right, asked = 0, 0
    for document in documents:
        pairs = re.findall(rf"The code of the (.*) is ({NUMBER})", document["text"])[:: max(1, document["text"].count("\n") // 3)][:3]
        questions = [f"\nWhat is the code of the {name}?" for name, _ in pairs]
        said = pipeline(document["text"], questions=questions, answer_prefix="The code is", max_new_tokens=8)["answers"]
        right += sum(number in answer for answer, (_, number) in zip(said, pairs))
        asked += len(pairs)
    return right / asked


def with_its_ends(tokenizer: Any, model: Any) -> Any:
    """lm-eval and kvpress ask the tokeniser for its first and last token, which a folder may name for the model alone."""
    for name in ("bos_token", "eos_token"):
        if getattr(tokenizer, name) is None:
            ids = getattr(model.config, f"{name}_id")
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(ids[0] if isinstance(ids, list) else ids))
    return tokenizer


def measured(model: Any, tokenizer: Any, kv: str, file: Path, documents: list[dict[str, Any]]) -> dict[str, float]:
    evaluated = lm_eval.simple_evaluate(lm_eval_model(model, tokenizer, kv), tasks=tasks(file), bootstrap_iters=0, log_samples=False)
    of = evaluated["results"]
    kvpress = pressed(kvpress_pipeline(model, tokenizer, kv), documents)
    return {"numbers": of["numbers"]["exact_match,number"], "choices": of["choices"]["acc,none"], "kvpress": kvpress,
            "again": of["again"]["word_perplexity,none"]}  # fmt: skip


def line(task: str, figures: list[float]) -> str:
    """f16 first. `again` is a perplexity, and the others are shares of right answers."""
    if task == "again":
        return f"{task:10}" + "".join(f"{figure:16.3f}" for figure in figures)
    says = "  says nothing" if figures[0] < 0.5 else ""
    return f"{task:10}" + "".join(f"{100 * figure:14.0f} %" for figure in figures) + says


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder of Transformers")
    parser.add_argument("--kv", action="append", default=[], help="a cache to compare with f16 (t4,t2 and tiny)")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--facts", type=int, default=12, help="facts of a context, about 14 tokens each")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = with_its_ends(AutoTokenizer.from_pretrained(args.model), model)
    documents = rows(args.seed, args.samples, args.facts)
    kvs = ["f16", *(args.kv or ["t4,t2", "tiny"])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.jsonl"
        file.write_text("".join(json.dumps(document) + "\n" for document in documents))
        figures = [measured(model, tokenizer, kv, file, documents) for kv in kvs]
    print(f"{'':10}" + "".join(f"{kv:>16}" for kv in kvs))
    for task in figures[0]:
        print(line(task, [of[task] for of in figures]))


if __name__ == "__main__":
    main()
