"""Compares tqkv with ONNX Runtime, OpenVINO and llama.cpp: time, bytes and error of one step of attention, in rounds, one process at a time."""

import argparse
import json
import os
import subprocess
import sys
import venv
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = ["onnxruntime==1.31.1", "onnx==1.23.2", "openvino==2026.4.1", "numpy==2.4.6"]
CASES = [
    ("tqkv", "f16"), ("tqkv", "i8"), ("onnx", "i8"), ("tqkv", "s4"), ("onnx", "i4"), ("openvino", "u8"), ("tqkv", "t4"), ("openvino", "u4"),
    ("tqkv", "s2"), ("openvino", "turbo4"), ("tqkv", "t2"), ("openvino", "turbo3"), ("openvino", "bf16"), ("onnx", "f32"),
    ("llamacpp", "f16"), ("llamacpp", "q8_0"), ("llamacpp", "q4_0"),
]  # fmt: skip


def environment(wheel):
    folder = HERE.parents[1] / "target" / "peers"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES, *([wheel] if wheel else [])], check=True)
    return python


def row_of(python, case, tokens, threads, seconds, seeds, limit):
    """The row of a process of its own. None if it takes longer than the limit or fails, which is told."""
    engine, kind = case
    command = [python, HERE / f"engine_{engine}.py", kind, str(tokens), str(threads), str(seconds), *map(str, seeds)]
    settings = os.environ | {"RAYON_NUM_THREADS": str(threads)}
    name = f"{engine} {kind}, {tokens or 4096} tokens, {threads} threads"
    try:
        done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"{name}: ended after {limit:.0f} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{name}: {(done.stderr.strip().splitlines() or [done.returncode])[-1]}", file=sys.stderr)
        return None
    row = {"engine": engine, **json.loads(done.stdout.splitlines()[-1])}
    if "ns" in row:
        print(f"{name}: {row['ns']:.1f} ns", file=sys.stderr)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("--python", type=Path, help="one that has the packages; else a virtual environment is made in target/peers")
    parser.add_argument("--wheel", help="the tqkv package, as host/python/README.md builds it")
    parser.add_argument("--tokens", type=numbers, default=[4096, 32768], help="lengths of the cache, with commas between")
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="likewise")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the best of which counts")
    parser.add_argument("--seeds", type=int, default=8, help="of the errors: each is another draw of the data")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a process is ended")
    parser.add_argument("--llama", type=Path, help="folder of the released libraries of llama.cpp; without it llama.cpp has no rows")
    parser.add_argument("--json", type=Path, help="where all figures go")
    args = parser.parse_args()
    python = args.python or environment(args.wheel)
    if args.llama:
        if not (args.llama / "libggml-base.so").exists():
            parser.error(f"--llama {args.llama}: no libggml-base.so: expected the folder of the released libraries of llama.cpp")
        os.environ["LLAMA_CPP_LIBRARIES"] = str(args.llama.resolve())
    settings = [(tokens, threads) for tokens in args.tokens for threads in args.threads]
    cases, rows = [case for case in CASES if case[0] != "llamacpp" or args.llama], defaultdict(list)
    errors = {case: row_of(python, case, 0, 2, 0, range(1, args.seeds + 1), args.limit) for case in cases}
    for round in range(args.rounds):
        for setting in settings:
            for case in cases:
                # What was too slow once is not waited for again.
                if round == 0 or rows[case, setting]:
                    row = row_of(python, case, *setting, args.seconds, [], args.limit)
                    rows[case, setting] += [row] if row else []
    if args.json:
        kept = [row for row in errors.values() if row]
        args.json.write_text(json.dumps([*kept, *(row for some in rows.values() for row in some)]))
    heads = " | ".join(f"{tokens}, {threads} threads" for tokens, threads in settings)
    print(f"| engine | KV | bytes | {heads} | error | with outliers |\n|{' --- |' * (5 + len(settings))}")
    for case in cases:
        best = [min((row["ns"] for row in rows[case, setting]), default=None) for setting in settings]
        size = next((str(row["bytes"]) for setting in settings for row in rows[case, setting]), "")
        spread = lambda values: f"{min(values):.3f} to {max(values):.3f}"
        cells = [*case, size, *("" if ns is None else f"{ns:.1f}" for ns in best)]
        cells += [spread(errors[case][name]) if errors[case] else "" for name in ("error", "error_outliers")]
        print("| " + " | ".join(cells) + " |")
    if not all(errors.values()) or not all(rows[case, setting] for case in cases for setting in settings):
        sys.exit("something was left out: see above")


main()
