"""What it costs to drop tokens instead of coding them: SnapKV's rule at the bytes of a compressed cache, on texts whose answers stand far back.

    pip install kvpress
    python3 examples/dropping.py FOLDER --text ../model/shipped/heldout.txt

SnapKV (arXiv 2404.14469) is kvpress' own: after the prompt each KV head keeps the last 32 tokens and those that their queries gave the most
attention, which is pooled with a kernel of 7 and averaged over the query heads of a group, in f16. It keeps as many as the compressed cache
has bytes at the end of the prompt, and what comes later is kept. Either the question is part of the prompt (`asked`), or the text alone was
the prompt and the question comes after it (`unasked`), as in a conversation or after a hit of a prefix cache. The figures are the KL of the
answers to those of the model's own cache, and the share of their tokens that are the likeliest ones.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, field
from typing import Any

import torch
from kvpress import SnapKVPress
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from tqkv.transformers import TqkvCache

STEP = 16
"""Tokens of an answer that come at a time: as many as `tiny` keeps exact."""


@dataclass
class Window:
    """Token ids of a text, of its question and of the answer."""

    text: list[int]
    question: list[int]
    answer: list[int]

    @property
    def prompt(self) -> list[int]:
        return self.text + self.question


def copied(rng: random.Random, encode: Any, running: list[int], words: list[str], tokens: int) -> Window:
    """A passage that comes again after running text. Its first tokens are the question."""
    passage, gap, start = running[:128], encode("\n\n"), rng.randrange(128, len(running) // 2)
    return Window(passage + gap + running[start : start + tokens - 288], gap + passage[:16], passage[16:])


def listed(rng: random.Random, encode: Any, running: list[int], words: list[str], tokens: int) -> Window:
    """A list of words and numbers that comes again. Its first line is the question."""
    lines = [f"{word}: {rng.randrange(10000, 100000)}\n" for word in rng.sample(words, 13)]
    told, answer, question = encode("\n" + "".join(lines) + "\n"), encode("".join(lines[1:])), encode("\n\n" + lines[0])
    return Window(told + running[: tokens - len(told) - len(question) - len(answer)], question, answer)


def scattered(rng: random.Random, encode: Any, running: list[int], words: list[str], tokens: int) -> Window:
    """Twelve facts in running text, of which four are asked for in a row."""
    names = rng.sample(words, 12)
    facts = [(f"\nThe code of {name} is", f" {rng.randrange(10000, 100000)}.\n") for name in names]
    text: list[int] = []
    room = (tokens - 200) // len(facts) - 20
    for i, (fact, code) in enumerate(facts):
        text += running[i * room : (i + 1) * room] + encode(fact + code)
    asked = rng.sample(facts, 4)
    return Window(text, encode("\n" + asked[0][0]), encode(asked[0][1] + "".join(fact + code for fact, code in asked[1:])))


KINDS = {"copy": copied, "list": listed, "facts": scattered}


@dataclass
class Keeping(SnapKVPress):
    """SnapKV for prompts that end at several places of one forward pass, which goes on as if nothing were dropped."""

    window_size: int = 32
    kernel_size: int = 7
    ends: list[int] = field(default_factory=list)
    kept: list[DynamicCache] = field(default_factory=list)

    def forward_hook(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        layer = kwargs["past_key_values"].layers[module.layer_idx]
        for end, cache in zip(self.ends, self.kept):
            cos, sin = (x[:, :end] for x in kwargs["position_embeddings"])
            keys, values = layer.keys[:, :, :end], layer.values[:, :, :end]
            few = self.compress(module, kwargs["hidden_states"][:, :end], keys, values, None, {"position_embeddings": (cos, sin)})
            cache.update(*few, module.layer_idx)
        return output


def told(model: Any, ids: list[int], cache: Any, at: int, step: int) -> torch.Tensor:
    """Log probabilities after each of the tokens from position `at` on."""
    parts = []
    for start in range(0, len(ids), step):
        part = torch.tensor([ids[start : start + step]])
        positions = torch.arange(at + start, at + start + part.shape[1])[None]
        parts.append(model(part, past_key_values=cache, position_ids=positions).logits[0].float())
    return torch.cat(parts).log_softmax(-1)


def answers(model: Any, window: Window, kv: str) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Log probabilities of the answer under each cache, from the last token of the question on, and bytes per token of the prompt."""
    prompt, rest = window.prompt, window.answer[:-1]
    caches, sizes = {}, {}
    model.set_attn_implementation("tqkv")
    coded = TqkvCache(model.config, kv=kv)
    told(model, prompt[:-1], coded, 0, len(prompt))
    f16, coded_bytes = coded.stats()["f16_bytes"], coded.stats()["bytes"]
    caches[kv] = told(model, [prompt[-1], *rest], coded, len(prompt) - 1, STEP)
    model.set_attn_implementation("sdpa")
    full, asked, unasked = DynamicCache(), DynamicCache(), DynamicCache()
    ends = [len(prompt) - 1, len(window.text)]
    press = Keeping(compression_ratio=max(0.0, 1 - coded_bytes / f16), ends=ends, kept=[asked, unasked])
    with press(model):
        told(model, prompt[:-1], full, 0, len(prompt))
    for name, cache, end in (("f16", full, ends[0]), ("asked", asked, ends[0]), ("unasked", unasked, ends[1])):
        sizes[name] = 2 * sum(x.numel() for layer in cache.layers for x in (layer.keys, layer.values)) / end
        ids = [*prompt[end:], *rest]
        caches[name] = told(model, ids, cache, end, len(ids))[len(prompt) - 1 - end :]
    return caches, {**sizes, kv: coded_bytes / ends[0]}


def kl(exact: torch.Tensor, other: torch.Tensor) -> float:
    return float((exact.exp() * (exact - other)).sum(-1).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder of Transformers")
    parser.add_argument("--text", required=True, help="running text")
    parser.add_argument("--kv", default="tiny")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--windows", type=int, default=3)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    words = sorted(set(re.findall(r"\b[a-z]{4,9}\b", text)))
    rows = [args.kv, "asked", "unasked"]
    print(f"{'text':8}{'f16 right':>12}" + "".join(f"{name:>12}{'right':>8}{'bytes':>8}" for name in rows), flush=True)
    for kind, make in KINDS.items():
        sums = {name: [0.0, 0.0, 0.0] for name in ["f16", *rows]}
        for seed in range(args.windows):
            rng = random.Random(f"{kind} {seed}")
            ids = tokenizer(text[(at := rng.randrange(len(text) // 2)) : at + 12 * args.tokens], add_special_tokens=False).input_ids
            window = make(rng, lambda piece: tokenizer(piece, add_special_tokens=False).input_ids, ids, words, args.tokens)
            with torch.no_grad():
                caches, sizes = answers(model, window, args.kv)
            for name, found in caches.items():
                right = float((found.argmax(-1) == torch.tensor(window.answer)).float().mean())
                of_window = (kl(caches["f16"], found), right, sizes[name])
                sums[name] = [total + each / args.windows for total, each in zip(sums[name], of_window)]
        cells = "".join(f"{sums[name][0]:12.4f}{100 * sums[name][1]:6.0f} %{sums[name][2]:8.0f}" for name in rows)
        print(f"{kind:8}{100 * sums['f16'][1]:10.0f} %{cells}", flush=True)


if __name__ == "__main__":
    main()
