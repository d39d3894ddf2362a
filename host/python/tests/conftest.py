"""Fixtures of the tests."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def torch():
    """PyTorch. A test that asks for it is skipped where it is not installed."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def command():
    """The command `tqkv`: the one in TQKV_COMMAND, which must exist, or one that is already built."""
    named = os.environ.get("TQKV_COMMAND")
    if named:
        assert os.access(named, os.X_OK), f"TQKV_COMMAND: {named} cannot be run"
        return named
    built = ROOT / "target" / "release" / "tqkv"
    found = str(built) if built.exists() else shutil.which("tqkv")
    if not found:
        pytest.skip("the command tqkv is not built: cargo build --release")
    return found
