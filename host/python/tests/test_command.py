"""The command in the package."""

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import tqkv


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_the_command_is_installed():
    script = Path(sysconfig.get_path("scripts")) / "tqkv"
    for command in ([str(script)], [sys.executable, "-m", "tqkv"]):
        done = run(*command, "--version")
        assert (done.returncode, done.stdout) == (0, f"tqkv {tqkv.__version__}\n")


def test_it_plans_as_the_program_does():
    done = run(
        sys.executable, "-m", "tqkv", "plan", "--layers", "2", "--kv-heads", "2", "--head-dim", "128",
        "--kv", "s4", "--json",
    )
    row = json.loads(done.stdout)["rows"][0]
    # Two layers, two heads, a key and a value of 2 + 64 bytes.
    assert row["bytes_per_token"] == 2 * 2 * 2 * 66


def test_a_wrong_word_ends_with_the_code_of_usage():
    done = run(sys.executable, "-m", "tqkv", "plann")
    assert done.returncode == 2
    assert "plan" in done.stderr


def test_the_package_holds_its_licences_and_the_bill_of_its_dependencies():
    package = importlib.metadata.distribution("tqkv-cache")
    assert package.metadata["License-Expression"] == "MIT OR Apache-2.0"
    names = {Path(str(file)).name for file in package.files or []}
    assert {"LICENSE-APACHE", "LICENSE-MIT", "tqkv-python.cyclonedx.json"} <= names


CONFORM = Path(__file__).resolve().parents[3] / "tests" / "vectors" / "conform.py"


@pytest.mark.skipif(not CONFORM.exists(), reason="golden files are in the repository only")
def test_the_conformance_suite_finds_the_command_right_and_another_one_wrong():
    tqkv = f"{sys.executable} -m tqkv"
    encode = tqkv + " encode --force --codec {codec} --seed {seed} --scale-mode {scale_mode} --effort {effort} {array} {file}"
    suite = lambda *words: run(sys.executable, str(CONFORM), *words)
    done = suite("--decode", tqkv + " decode --force {file} {array}", "--encode", encode, "--codec", "s4", "t2")
    cases = int(done.stdout.split()[0])
    assert done.returncode == 0 and cases > 60 and done.stdout == f"{cases} of {cases} cases are right\n", done.stdout
    # Every file has a decoder that gets it wrong: one that refuses all, and one that takes all.
    for decode, kind in (("false", "decodes"), ("true", "refused")):
        lines = suite("--encode", "", "--decode", decode).stdout.splitlines()
        assert sum(line.startswith(kind) for line in lines) >= 20
    done = suite("--decode", "", "--encode", encode.replace("{seed}", "43"), "--codec", "s4")
    assert done.returncode == 1 and "encodes s4 D=128 seed=42 unbiased default: " in done.stdout
