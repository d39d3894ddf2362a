#!/usr/bin/env python3
"""Runs another implementation of SPEC.md over the golden blocks and files of this folder. It needs Python alone.

    python3 conform.py                                    # the command tqkv
    python3 conform.py --decode './mine decode {file} {array}' --encode './mine encode {codec} {seed} {scale_mode} {effort} {array} {file}'

An array is a .npy file of f32 of the shape [vectors, D]. A decoder ends with status 0 and the array, or, for a file that is wrong, with
another status and no array. Blocks must be equal to the bit; decoded values may differ by a millionth of the largest.
"""

import argparse
import ast
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DECODE = "tqkv decode --force {file} {array}"
ENCODE = "tqkv encode --force --codec {codec} --seed {seed} --scale-mode {scale_mode} --effort {effort} {array} {file}"


def write_array(path, dim, values):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {dim}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values)


def read_array(path):
    data = path.read_bytes()
    assert data[:8] == b"\x93NUMPY\x01\x00", "no .npy file of version 1"
    end = 10 + struct.unpack_from("<H", data, 8)[0]
    assert ast.literal_eval(data[10:end].decode())["descr"] == "<f4", "no array of f32"
    return data[end:]


def run(command, **of):
    words = [word.format(**of) for word in command.split()]
    return subprocess.run(words, capture_output=True, text=True)


def decoded(command, folder, file, want):
    """What is wrong with the decoder, or None."""
    at, array = folder / "file.tqk", folder / "array.npy"
    at.write_bytes(file)
    array.unlink(missing_ok=True)
    done = run(command, file=at, array=array)
    if want is None:
        return "was decoded" if done.returncode == 0 else "left an array" if array.exists() else None
    if done.returncode != 0:
        return (done.stderr or done.stdout).strip() or f"status {done.returncode}"
    if not array.exists():
        return "made no array"
    got = read_array(array)
    if len(got) != len(want):
        return f"{len(got) // 4} values, expected {len(want) // 4}"
    got, want = (struct.unpack(f"<{len(x) // 4}f", x) for x in (got, want))
    largest = max(map(abs, want))
    worst = max((abs(a - b), i) for i, (a, b) in enumerate(zip(got, want)))
    return None if worst[0] <= 1e-6 * largest else f"value {worst[1]} is {got[worst[1]]}, expected {want[worst[1]]}"


def encoded(command, folder, codec, seed, scale_mode, effort, vector, want):
    """What is wrong with the encoder, or None. The block is the last but for a CRC of the file."""
    at, array = folder / "file.tqk", folder / "array.npy"
    write_array(array, len(vector) // 4, vector)
    at.unlink(missing_ok=True)
    done = run(command, file=at, array=array, codec=codec, seed=seed, scale_mode=scale_mode, effort=effort)
    if want == "refused":
        return "was encoded" if done.returncode == 0 else None
    if done.returncode != 0:
        return (done.stderr or done.stdout).strip() or f"status {done.returncode}"
    if not at.exists():
        return "made no file"
    got = at.read_bytes()[-4 - len(want) // 2 : -4].hex()
    return None if got == want else f"{got}, expected {want}"


def cases(options, folder):
    """The name of each case, and what is wrong in it, or None."""
    if options.decode:
        for line in (HERE / "files.txt").read_text().splitlines():
            kind, name, file, rest = (line.split(" ", 3) + [""])[:4]
            if kind in ("decodes", "refused"):
                bytes_of = b"" if file == "-" else bytes.fromhex(file)
                want = bytes.fromhex(rest) if kind == "decodes" else None
                what = decoded(options.decode, folder, bytes_of, want)
                yield f"{kind} {name}" + (f" ({rest})" if want is None else ""), what
    vectors = {}
    for line in (HERE / "blocks.txt").read_text().splitlines():
        words = line.split()
        if words[:2] == ["#", "vector"]:
            vectors[words[2]] = bytes.fromhex(words[3])
        elif words[0] != "#" and options.encode and words[0] in (options.codec or words[:1]):
            codec, dim, seed, scale_mode, effort, want = words
            what = encoded(options.encode, folder, codec, seed, scale_mode, effort, vectors[dim], want)
            yield f"encodes {codec} D={dim} seed={seed} {scale_mode} {effort}", what


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", default=DECODE, help="command of a decoder; empty: none")
    parser.add_argument("--encode", default=ENCODE, help="command of an encoder; empty: none")
    parser.add_argument("--codec", nargs="*", help="encode with these alone")
    options = parser.parse_args()
    count, wrong = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, what in cases(options, pathlib.Path(folder)):
            count += 1
            if what is not None:
                wrong += 1
                print(f"{name}: {what}")
    print(f"{count - wrong} of {count} cases are right")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
