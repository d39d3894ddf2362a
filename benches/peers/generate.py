#!/usr/bin/env python3
"""Tokens of a prompt, and tokens generated after it, per second of processor time of one thread: tqkv's own command, mistral.rs and stock llama.cpp.

Each engine runs the same GGUF file on one processor, in turns with the others. It runs three times, each in a process of its own: with one token, with
the prompt and one more token, and with the prompt and all tokens. The differences of their processor times are those of the prompt and of the tokens, so
other work on the machine changes little. Of several rounds the least times count. README.md says how to get the programs.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Asks mistral.rs for tokens. Its arguments are the model, the file of the prompt, and the tokens of both.
MISTRAL = """
import sys
from pathlib import Path
from mistralrs import CompletionRequest, Runner, Which
model, prompt, tokens = Path(sys.argv[1]), Path(sys.argv[2]).read_text(), [int(number) for number in sys.argv[3:]]
runner = Runner(which=Which.GGUF(quantized_model_id=str(model.parent), quantized_filename=model.name))
usage = runner.send_completion_request(CompletionRequest(model="default", prompt=prompt, max_tokens=tokens[1], temperature=0.0)).usage
if abs(usage.prompt_tokens - tokens[0]) > 2 or usage.completion_tokens != tokens[1]:
    sys.exit(f"{usage.prompt_tokens} tokens and {usage.completion_tokens} more, expected {tokens}")
"""
ENGINES = ["tqkv f16", "tqkv s4", "mistral.rs f16", "llama.cpp f16"]


def seconds(engine, args, prompt, tokens):
    """Processor time of a process that reads a prompt of `prompt` tokens and generates `tokens`."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        # Each word is a token.
        file.write(" ".join(["hello"] * prompt))
        file.flush()
        if engine.startswith("tqkv"):
            command = [args.tqkv, "generate", "-m", args.model, "--prompt-file", file.name, "-n", tokens, "--kv", engine.split()[1], "--threads", 1]
        elif engine.startswith("mistral"):
            command = [args.mistral, "-c", MISTRAL, args.model, file.name, prompt, tokens]
        else:
            command = [args.client, args.libraries, args.model, "hello", "speed", prompt, tokens - 1]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        variables = {**os.environ, "RAYON_NUM_THREADS": "1", "CTX": str(prompt + tokens)}
        command = ["taskset", "-c", str(args.processor), *map(str, command)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{engine}: status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--tqkv", type=Path, default=Path("../../target/release/tqkv"), help="the command, a release build")
    parser.add_argument("--mistral", type=Path, help="a Python that has mistralrs; without it mistral.rs has no row")
    parser.add_argument("--client", type=Path, help="host/llama/tests/client.c, built; without it llama.cpp has no row")
    parser.add_argument("--libraries", type=Path, help="the libraries of llama.cpp for it")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--generate", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processor", type=int, default=0, help="number of the processor that all run on")
    args = parser.parse_args()
    has = {"mistral.rs": args.mistral, "llama.cpp": args.client}
    engines = [engine for engine in ENGINES if has.get(engine.split()[0], True)]
    runs = [(1, 1), *((tokens, more) for tokens in args.tokens for more in (1, 1 + args.generate))]
    least = defaultdict(lambda: float("inf"))
    print("load", *os.getloadavg(), file=sys.stderr)
    for _ in range(args.rounds):
        for run in runs:
            for engine in engines:
                found = seconds(engine, args, *run)
                least[engine, run] = min(least[engine, run], found)
                print(engine, *run, f"{found:.2f} s", file=sys.stderr, flush=True)
    print("load", *os.getloadavg(), file=sys.stderr)
    print("| engine | " + " | ".join(f"{tokens:,} tokens" for tokens in args.tokens) + " |\n|" + " --- |" * (1 + len(args.tokens)))
    for engine in engines:
        cells = []
        for tokens in args.tokens:
            start, prompt, all = (least[engine, run] for run in ((1, 1), (tokens, 1), (tokens, 1 + args.generate)))
            cells.append(f"{(tokens - 1) / (prompt - start):.0f} / {args.generate / (all - prompt):.1f}")
        print(f"| {engine} | " + " | ".join(cells) + " |")


main()
