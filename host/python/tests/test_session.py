"""Packs of saved states are those of the library, in memory and in files."""

from pathlib import Path

import numpy as np
import pytest
import tqkv
from tqkv import session

GOLDEN = Path(__file__).resolve().parents[2] / "session" / "tests" / "golden"


@pytest.fixture
def state():
    """66 tokens, one KV head of 64, and recurrent state."""
    return (GOLDEN / "coded.state").read_bytes()


def test_a_state_goes_through_memory_and_comes_back(state):
    exact = session.pack(state, "exact")
    assert session.unpack(exact).tobytes() == state
    assert session.inspect(exact)["exact"] is True
    coded = session.pack(np.frombuffer(state, np.uint8), "t4,t2", head_dim=64)
    back = session.unpack(coded.tobytes())
    assert back.dtype == np.uint8 and len(back) == len(state) and back.tobytes() != state
    found = session.inspect(memoryview(coded))
    assert (found["kind"], found["exact"], found["state_bytes"]) == ("pack", False, len(state))
    assert found["pack_bytes"] == len(coded) and found["coded_pack_bytes"] < found["coded_state_bytes"]
    found = session.inspect(back)
    assert (found["kind"], found["cells"], found["tokens"]) == ("state", [66], 3)


def test_a_pack_in_a_basis_needs_it(tmp_path, state):
    basis = tqkv.Storage(tqkv.Basis.load(GOLDEN / "basis.tqb"))
    packed = session.pack(state, basis=basis, budget=1.1)
    found = session.inspect(packed)
    assert found["coded_pack_bytes"] * 5 < found["coded_state_bytes"] and len(found["basis"]) == 64
    back = session.unpack(packed, basis)
    assert len(back) == len(state)
    with pytest.raises(tqkv.TqkvError, match="given is none"):
        session.unpack(packed)
    (tmp_path / "state").write_bytes(state)
    session.pack_file(tmp_path / "state", tmp_path / "pack", basis=basis, budget=1.1)
    session.unpack_file(tmp_path / "pack", tmp_path / "back", basis)
    assert (tmp_path / "back").read_bytes() == back.tobytes()


def test_files_have_the_bytes_of_memory(tmp_path, state):
    (tmp_path / "state").write_bytes(state)
    session.pack_file(tmp_path / "state", str(tmp_path / "pack"), "s4", 64)
    coded = session.pack(state, "s4", 64)
    assert (tmp_path / "pack").read_bytes() == coded.tobytes()
    session.unpack_file(tmp_path / "pack", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == session.unpack(coded).tobytes()
    assert session.inspect(tmp_path / "pack") == session.inspect(coded)


def test_what_is_damaged_is_refused_by_name(tmp_path, state):
    coded = session.pack(state, head_dim=64)
    for at in range(0, len(coded), 997):
        bad = coded.copy()
        bad[at] ^= 1
        with pytest.raises(tqkv.TqkvError):
            session.unpack(bad)
    (tmp_path / "cut").write_bytes(coded.tobytes()[:-1])
    with pytest.raises(tqkv.TqkvError, match="cut: pack: cut within"):
        session.unpack_file(tmp_path / "cut", tmp_path / "none")
    with pytest.raises(tqkv.TqkvError, match="cut: state, byte"):
        session.pack_file(tmp_path / "cut", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="missing"):
        session.inspect(tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]
    for arguments, said in [
        ((state, "t9"), "expected a codec such as t4"),
        ((state, "t4", 60), "heads of 60"),
        ((state[:100],), "cut"),
        ((b"",), "cut"),
        ((np.zeros(9, np.float32),), "expected an array of uint8"),
    ]:
        with pytest.raises(tqkv.TqkvError, match=said):
            session.pack(*arguments)
