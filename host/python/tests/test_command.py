"""The command in the package."""

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

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
