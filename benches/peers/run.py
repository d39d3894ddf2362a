"""Compares tqkv with ONNX Runtime and OpenVINO: time, bytes and error of one step of attention, in rounds, one process at a time."""

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
]  # fmt: skip


def environment(wheel):
    folder = HERE.parents[1] / "target" / "peers"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES, *([wheel] if wheel else [])], check=True)
    return python


def row_of(python, engine, kind, tokens, threads, seconds, seeds):
    command = [python, HERE / f"engine_{engine}.py", kind, str(tokens), str(threads), str(seconds), *map(str, seeds)]
    done = subprocess.run(command, env=os.environ | {"RAYON_NUM_THREADS": str(threads)}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{engine} {kind}: {done.stderr.strip().splitlines()[-1]}")
    return {"engine": engine, **json.loads(done.stdout.splitlines()[-1])}


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
    parser.add_argument("--json", type=Path, help="where all figures go")
    args = parser.parse_args()
    python = args.python or environment(args.wheel)
    settings = [(tokens, threads) for tokens in args.tokens for threads in args.threads]
    rows, errors = defaultdict(list), {}
    for engine, kind in CASES:
        errors[engine, kind] = row_of(python, engine, kind, 0, 2, 0, range(1, args.seeds + 1))
    for round in range(args.rounds):
        for setting in settings:
            for case in CASES:
                print(f"round {round + 1}: {case[0]} {case[1]}, {setting[0]} tokens", end="\r", file=sys.stderr)
                rows[case, setting].append(row_of(python, *case, *setting, args.seconds, []))
    if args.json:
        args.json.write_text(json.dumps([*errors.values(), *(row for some in rows.values() for row in some)]))
    heads = " | ".join(f"{tokens}, {threads} threads" for tokens, threads in settings)
    print(f"| engine | KV | bytes | {heads} | error | with outliers |\n|{' --- |' * (5 + len(settings))}")
    for case in CASES:
        best = [min(row["ns"] for row in rows[case, setting]) for setting in settings]
        spread = lambda values: f"{min(values):.3f} to {max(values):.3f}"
        cells = [*case, str(rows[case, settings[0]][0]["bytes"]), *(f"{ns:.1f}" for ns in best)]
        cells += [spread(errors[case][name]) for name in ("error", "error_outliers")]
        print("| " + " | ".join(cells) + " |")


main()
