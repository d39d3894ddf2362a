"""`tqkv plan` of every family of Transformers, against what the library's own cache holds per layer. Models are made on the meta device, so
that no weight is. Without torch and Transformers the tests are skipped, or fail with `TQKV_REQUIRE_TRANSFORMERS=1`."""

import collections
import json
import os
import subprocess

import pytest

if os.environ.get("TQKV_REQUIRE_TRANSFORMERS") != "1":
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

import plan_weights  # noqa: E402
from plan_families import CASES, TABLE, as_frozen, cases, families, quiet, table, without_end  # noqa: E402


def planned(command, file, path):
    """Window, KV heads, and coordinates of a key and a value of each layer; or what the command said."""
    path.write_text(json.dumps(file))
    args = [command, "plan", "--json", "--model", str(path), "--kv", "f16 hot=0 sinks=0"]
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    report = json.loads(done.stdout)
    shapes = [held(shape) for shape in report["shapes"]]
    total = sum(2 * heads * (key + value) for heads, key, value in (shapes[i][1:] for i in report["layer_shapes"] if i is not None))
    assert report["rows"][0]["bytes_per_token"] == total, file
    return without_end([None if i is None else shapes[i] for i in report["layer_shapes"]])


def held(shape):
    latent = shape["position_dim"]
    key, value = (shape["value_dim"], latent) if latent else (shape["head_dim"], shape["value_dim"])
    return [shape["window"] or 0, shape["kv_heads"], key, value]


def test_every_family_is_planned_as_its_cache_is_or_refused(command, tmp_path, capsys):
    quiet()
    outcomes, wrong = collections.defaultdict(collections.Counter), []
    for name in families():
        for change, file, expected in cases(name):
            if isinstance(expected, str) or not expected:
                outcomes[name]["not made"] += 1
                continue
            found = planned(command, file, tmp_path / "config.json")
            outcome = "refused" if isinstance(found, str) else "equal" if found == expected else "wrong"
            outcomes[name][outcome] += 1
            if outcome == "wrong":
                wrong.append((name, change, found, expected))
    count = collections.Counter("equal" if each["equal"] else "refused" if each["refused"] else "not made" for each in outcomes.values())
    with capsys.disabled():
        print(f"\nfamilies planned: {len(outcomes)}, {dict(count)}")
        print("refused:", *(name for name, each in outcomes.items() if each["refused"] and not each["equal"]))
        print("not made:", *(name for name, each in outcomes.items() if set(each) == {"not made"}))
    assert not wrong
    assert count["equal"] >= 140, count


def test_the_table_of_families_is_that_of_this_version(capsys):
    """Another version of Transformers may know more families, and change a default."""
    known = {line["model_type"]: line for line in map(json.loads, TABLE.read_text().splitlines())}
    here = {line["model_type"]: line for line in json.loads(json.dumps(table()))}
    changed = [name for name in known if name in here and known[name] != here[name]]
    with capsys.disabled():
        print("\nnot in the table:", *sorted(set(here) - set(known)))
    assert len(changed) <= 10, f"python {CASES.parents[4]}/host/python/tests/plan_families.py table: {changed}"


def test_frozen_cases_are_small_and_whole():
    lines = [json.loads(line) for line in CASES.read_text().splitlines()]
    assert len({line["config"]["model_type"] for line in lines}) >= 140
    assert all(as_frozen(line["config"], line["layers"]) == line for line in lines)


def weighed(command, file, path):
    """Weights outside the layers, of the largest layer, and of all, at a byte each; or what the command said."""
    path.write_text(json.dumps(file))
    done = subprocess.run([command, "plan", "--json", "--model", str(path), "--kv", "f16", "--weight-bits", "8"], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip()
    weights = json.loads(done.stdout)["weights"]
    return [weights["beside_layers"], weights["largest_layer"], weights["all"]]


def test_weights_are_as_many_as_the_library_has(command, tmp_path, capsys):
    """Other files than those in the frozen cases, because a family may be drawn anew."""
    quiet()
    wrong, equal = [], collections.Counter()
    for name in plan_weights.rows().keys() - plan_weights.SAME:
        for file, expected in plan_weights.cases(name, 2):
            found = weighed(command, file, tmp_path / "config.json")
            equal[name] += found == expected
            if found != expected:
                wrong.append((file, found, expected))
    with capsys.disabled():
        print(f"\nfamilies counted: {len(+equal)}, of {len(families())} that have a model")
    assert not wrong


def test_frozen_counts_are_of_all_families_with_a_row():
    known = plan_weights.rows()
    lines = [json.loads(line) for line in plan_weights.CASES.read_text().splitlines()]
    assert {line["config"]["model_type"] for line in lines} == known.keys() - plan_weights.SAME
    assert all(plan_weights.as_frozen(line["config"], line["weights"], known[line["config"]["model_type"]]) == line for line in lines)
