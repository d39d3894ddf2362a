"""The versions of engines and of Transformers that documents and metadata claim are those that CI tests."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1]
STEPS = PACKAGE.parents[1] / ".ci" / "long-steps"
NAMES = {"lmcache": "LMCache", "vllm": "vLLM", "sglang": "SGLang"}

pytestmark = pytest.mark.skipif(not STEPS.exists(), reason="this is not the tree of the repository")


def doors():
    """Versions of each package that `long_engines` installs, by the test file next to which it does."""
    (lines,) = re.findall(r"^doors=\(\n(.*?)^\)", STEPS.read_text(), re.M | re.S)
    found = {}
    for line in lines.splitlines():
        tests, *packages = line.strip().strip('"').split()
        assert (PACKAGE / "tests" / f"test_{tests}.py").exists(), tests
        for package in packages:
            name, version = package.split("==")
            found.setdefault(tests, {}).setdefault(name, []).append(version)
    return found


def engines():
    """The one package of each engine, and its versions, newest first."""
    return {tests: list(packages.items()) for tests, packages in doors().items() if tests in NAMES}


def test_engines_md_names_the_tested_versions():
    text, pinned = (PACKAGE / "ENGINES.md").read_text(), engines()
    assert set(pinned) == set(NAMES)
    rows = dict(re.findall(r"^\| (LMCache|vLLM|SGLang) \| ([^|]*?) \|", text, re.M))
    for engine, [(package, versions)] in pinned.items():
        assert set(re.findall(r"[\d.]+\d", rows[NAMES[engine]])) == set(versions), engine
        assert package == engine or package in rows[NAMES[engine]]
        (heading,) = re.findall(rf"^## {NAMES[engine]} \(([\d.]+)", text, re.M)
        assert heading == versions[0], engine


def test_the_oldest_transformers_and_pytorch_are_tested():
    oldest = {name: versions[-1] for name, versions in doors()["transformers"].items()}
    metadata = (PACKAGE / "pyproject.toml").read_text()
    for package in ("torch", "transformers"):
        claimed = set(re.findall(rf'"{package}>=([\d.]+)"', metadata))
        assert len(claimed) == 1 and oldest[package] == f"{claimed.pop()}.0", package
    text = (PACKAGE / "python" / "tqkv" / "transformers.py").read_text()
    (named,) = re.findall(r'^OLDEST = "(.*)"$', text, re.M)
    assert oldest["transformers"] == f"{named}.0"


def test_the_plugin_of_vllm_knows_the_tested_versions():
    text = (PACKAGE / "python" / "tqkv" / "vllm_plugin.py").read_text()
    (named,) = re.findall(r'^TESTED = "(.*)"$', text, re.M)
    [(_, versions)] = engines()["vllm"]
    assert all(version.startswith(f"{named}.") for version in versions)
