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


CONFIG = {
    "model_type": "gemma2", "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 512, "head_dim": 64,
    "sliding_window": 512, "max_position_embeddings": 8192,
}


@pytest.mark.parametrize("kv", ["f16", "s4", "t4,t2 hot=16 tier=1024:t2,t2", "tiny", "narrow-at=2MiB t4"])
def test_a_plan_in_python_is_that_of_the_command(tmp_path, kv):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    options = ["--model", str(file), "--kv", kv, "--tokens", "5000", "--memory", "3MiB", "--json"]
    report = json.loads(run(sys.executable, "-m", "tqkv", "plan", *options).stdout)
    [row] = report["rows"]
    for model in (CONFIG, file, str(file), tmp_path):
        plan = tqkv.Plan(model, kv)
        assert (plan.bytes(5000), plan.longest(3 << 20), plan.context) == (row["cache_bytes"], row["max_tokens"], 8192)
        # The command adds a token's share of the maps of keys, which `tiny` has.
        assert plan.bytes_per_token == row["bytes_per_token"] or kv == "tiny" and 0 < row["bytes_per_token"] - plan.bytes_per_token < 10
        assert plan.bytes(plan.longest(3 << 20)) <= 3 << 20


@pytest.mark.parametrize(
    "model, kv, reason",
    [
        (CONFIG, "s9", "s9"),
        (CONFIG, "s4 ring=1", "ring"),
        (CONFIG | {"num_hidden_layers": -1}, "s4", "config.json: num_hidden_layers is -1"),
        ({"model_type": "nonsense"}, "s4", "family nonsense"),
        (7, "s4", "expected a path, a config of Transformers or a dict"),
        ({"a": object()}, "s4", "a dict that is no config.json"),
        (CONFIG, 4, "kv"),
        (CONFIG, "nvfp4", "nvfp4"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(model, kv, reason):
    with pytest.raises(tqkv.TqkvError, match=reason) as error:
        tqkv.Plan(model, kv)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("number", [-1, 0.5, "9", None, 1 << 65])
def test_a_plan_takes_whole_numbers(number):
    plan = tqkv.Plan(CONFIG, "s4")
    for call, name in ((plan.bytes, "tokens"), (plan.longest, "memory")):
        with pytest.raises(tqkv.TqkvError, match=name):
            call(number)


def test_a_plan_of_a_missing_model_names_it(tmp_path):
    for name in ("config.json", "model.gguf"):
        with pytest.raises((OSError, tqkv.TqkvError), match=name):
            tqkv.Plan(tmp_path / name)


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
