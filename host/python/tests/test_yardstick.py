"""A codec of another program compared with those of tqkv."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KIVI = Path(__file__).parent.parent / "examples" / "kivi.py"


def evaluated(*rows: str) -> dict[str, dict]:
    """The rows of `tqkv eval` on the shipped model, by their names."""
    words = [word for row in rows for word in ("--kv", row)]
    command = [sys.executable, "-m", "tqkv", "eval", "--context", "256", "--windows", "1", "--json", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return {row.get("policy", row["kv"]): row for row in json.loads(done.stdout)["results"]}


def test_kivi_stands_in_the_table():
    two, four = (f"hot=32 program={sys.executable} {KIVI} --bits {bits}" for bits in (2, 4))
    rows = evaluated("s4 hot=32", two, four)
    assert rows[two]["is_program"] and "is_program" not in rows["s4 hot=32"]
    assert 0 < rows[four]["kl_to_f16"] < 0.2 * rows[two]["kl_to_f16"]
    # Of 256 tokens 36 stay exact, and 220 are six groups of 32 and one of 28. The model has 4 layers with a KV head of dim 128. Groups of
    # 32 numbers take 4 bytes more: of keys 128 per group of tokens, of values 4 per token.
    for row, bits in ((two, 2), (four, 4)):
        keys, values = 220 * 128 * bits // 8 + 7 * 128 * 4, 220 * (128 * bits // 8 + 4 * 4)
        expected = 4 * (keys + values + 36 * 2 * 2 * 128) / 256
        assert abs(rows[row]["cache_bytes_per_token"] - expected) < 1e-6


def test_a_wrong_shape_is_refused_by_name():
    code = "from tqkv.yardstick import serve; serve(lambda x: (x[:, 1:], 0))"
    command = [sys.executable, "-m", "tqkv", "eval", "--context", "256", "--windows", "1", "--kv", f"program={sys.executable} -c '{code}'"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "keys of the shape (1, 127) are not valid: expected (1, 128)" in done.stderr
    assert "keys of layer 0, KV head 0: no full answer: the program ended" in done.stderr
