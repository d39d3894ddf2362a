"""The weights of each family of Transformers as a sum of terms, for `tqkv plan --weight-bits`.

A model is made on the meta device from a config whose numbers remember the key that they came from, so that the shape of each tensor is known as a
product of keys. Configs of a family whose switches and lists are drawn at random show on what each tensor depends.

    python plan_weights.py table [NAME..]      writes the terms of all families, `TABLE`
    python plan_weights.py cases [NAME..]      writes configs with the counts of the library, `CASES`
    python plan_weights.py NAME..              prints the terms of some families, or why there are none"""

import collections
import contextlib
import copy
import inspect
import json
import math
import random
import re
import sys

import torch
import transformers
from plan_families import TABLE as FAMILIES
from plan_families import READ, ROOT, letters, quiet, variants, write
from plan_shapes import Int, Key, Named, Real, is_number, is_real, remembered
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

TABLE = ROOT / "host/model/src/kv/weights.jsonl"
CASES = ROOT / "host/model/tests/golden/weight_cases.jsonl"
ROUNDS = 8
WRONG = "bailing_hybrid dory dots1 electra falcon_mamba flint gemma3n_text granitemoe_swa granitemoehybrid hy_v4 hy_v4_vl_text mamba nemotron_h".split()
"""Families that have terms, which are wrong for files that leave out a key, or for some values of a key."""
SAME = {"kimi_k2": "deepseek_v3"}
"""Families of the hub with the code of another."""


GLOBAL = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""Keys that full layers of Gemma 4 have of their own."""


def with_keys(config):
    """The config with numbers that remember their key. A list with an entry per layer has that of its layer."""
    config = copy.deepcopy(config)
    for key, value in vars(config).items():
        if is_real(value):
            config.__dict__[key] = (Key if is_number(value) else Real)(value, key)
        elif isinstance(value, list) and value and all(map(is_number, value)) and len(value) == config.num_hidden_layers:
            config.__dict__[key] = [Key(one, key) for one in value]
    for own in getattr(vars(config).get("_heterogeneity_spec"), "per_layer_overrides", {}).values():
        own.update({key: Key(value, GLOBAL[key]) for key, value in own.items() if key in GLOBAL})
    return config


LAYERS = ("layers", "h", "blocks", "block", "layer", "decoder_layers")


def place(name):
    """The number of the layer, if any, and the name without numbers."""
    words, layer = name.split("."), None
    for i, word in enumerate(words):
        if word.isdigit():
            if layer is None and words[i - 1] in LAYERS:
                layer = int(word)
            words[i] = "*"
    return layer, ".".join(words)


def made(config):
    """The model of a config, or the text model of one that is part of others."""
    auto = AutoModelForCausalLM if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModel
    return auto.from_config(config)


def tensors(config):
    """The tensors of a model: place, expression and numbers of each, with those of the same name counted."""
    with remembered():
        model = made(with_keys(config))
    found = {}
    for name, parameter in model.named_parameters():
        layer, role = place(name)
        keys, count = getattr(parameter, "keys", None), parameter.numel()
        if count == 1 and keys is None:
            keys = ["1"] * parameter.dim()
        if keys is None or len(keys) != parameter.dim():
            raise ValueError(f"nothing is known of the shape of {name}")
        one = found.setdefault((layer, role, "*".join(key for key in keys if key != "1") or "1"), [0, count])
        one[0] += 1
    return found



NOT_SHAPES = ("use_cache", "output_", "return_", "is_encoder_decoder", "add_cross_attention", "is_decoder", "tf_", "torch", "gradient", "chunk_size_feed")
"""Beginnings of switches on which no tensor depends."""
PLACES = re.compile("first|dense|freq|step|period|offset|interval|shared|start|every|last|skip")
"""Names of numbers that say which layers are of which kind."""
EXPERTS = re.compile(r"^(moe_)?(num|n)_(local_|routed_)?experts$")


def layers_key(name):
    return getattr(CONFIG_MAPPING[name], "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")


def has_head(name):
    return name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def modules(name):
    """The modules of a family's model and config."""
    model = (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if has_head(name) else MODEL_MAPPING_NAMES)[name]
    model = getattr(transformers, model, None) if isinstance(model, str) else None
    return [sys.modules[made.__module__] for made in (model, CONFIG_MAPPING[name]) if made is not None]


def families():
    return {line["model_type"]: line for line in map(json.loads, FAMILIES.read_text().splitlines())}


def names():
    """The families that may have a row: those of `plan_families.TABLE` with a model of their own."""
    own = lambda name, line: "text" not in line and "refused" not in line and name in CONFIG_MAPPING
    return [name for name, line in families().items() if own(name, line) and name not in WRONG]


def asked(name):
    """Keys that the model looks for and the config does not have, with a value."""
    source = inspect.getsource(modules(name)[0])
    for key, default in re.findall(r"getattr\(\w*config, \"(\w+)\", ([^()\n]+)\)", source):
        if not key.startswith(("_", *NOT_SHAPES)):
            yield key, True if default in ("False", "True") else 64


def changes(name):
    """Each switch turned, and each number that may be nothing."""
    fields = vars(CONFIG_MAPPING[name]())
    for key, value in fields.items():
        if isinstance(value, bool) and not key.startswith(("_", *NOT_SHAPES)):
            yield {key: not value}
            # Some switches need numbers that are nothing otherwise.
            more = {other: 8 for other, value in fields.items() if value is None and re.search("^[a-z].*experts|intermediate", other)}
            if more:
                yield {key: not value, **more}
        elif value is None and re.search("^[a-z].*(rank|inner|head_dim|heads|size|dim$|experts)|^head_dim", key):
            yield {key: 64}
        elif is_number(value) and re.search("rank|inner|head_dim|shared|key_value_heads|per_layer|experts$|sliding|intermediate", key):
            yield {key: None}
            if "rank" not in key and "dim" not in key:
                yield {key: 0 if value else 64}
    for key, default in asked(name):
        if key not in fields:
            yield {key: default}


KINDS = {"lfm2_moe": {"layer_types": ["conv", "full_attention"]}, "granitemoehybrid": {"layer_types": ["full_attention", "linear_attention"]}}
"""Words of lists that have no default."""


def drawn(name, draw):
    """A file of a family with other switches, numbers that place layers, and lists."""
    base = CONFIG_MAPPING[name]()
    fields, file = vars(base), {layers_key(name): draw.randint(4, 6)}
    layers, before = file[layers_key(name)], base.num_hidden_layers
    file.update({key: [draw.choice(words) for _ in range(layers)] for key, words in KINDS.get(name, {}).items()})
    for key, value in fields.items():
        if value is None and re.search("_indices|_idxs", key) and draw.random() < 0.7:
            file[key] = sorted(draw.sample(range(layers), draw.randint(0, layers)))
        elif isinstance(value, list) and re.search("^(moe|mlp_only)_layers$", key):
            if draw.random() < 0.5:
                file[key] = sorted(draw.sample(range(layers), draw.randint(0, layers)))
        elif key.endswith("num_inputs") and is_number(value):
            file[key] = draw.randint(2, 5)
        elif is_number(value) and EXPERTS.search(key) and value > 1:
            file[key] = draw.choice([8, 16, 24, 32, 40])
        elif is_number(value) and PLACES.search(key) and value < 20 and "size" not in key and draw.random() < 0.6:
            file[key] = draw.randint(0 if re.search("layer|shared|offset|first|dense", key) else 1, 3)
        elif isinstance(value, list) and len(value) == before and all(isinstance(one, str) for one in value):
            if draw.random() < 0.6:
                kinds = sorted(set(value))
                file[key] = [draw.choice(kinds) for _ in range(layers)]
        elif isinstance(value, list) and len(value) == before and before > 1 and all(map(is_number, value)):
            file[key] = [draw.choice(value) * draw.randint(1, 2) for _ in range(layers)]
        elif isinstance(value, list) and re.search("layers|idx|indices", key) and all(map(is_number, value)) and draw.random() < 0.6:
            file[key] = sorted(draw.sample(range(layers), draw.randint(0, layers)))
    return file


def kinds(config):
    """A letter for each layer, also for those that use the keys of others; or None."""
    config = copy.deepcopy(config)
    if getattr(config, "num_kv_shared_layers", None):
        config.num_kv_shared_layers = 0
    try:
        found = letters(config)
    except Exception:
        return None
    return found if len(found) == config.num_hidden_layers else None


class Sample:
    """A config, the kinds of its layers and the tensors of its model."""

    def __init__(self, name, file):
        self.file, self.config = file, CONFIG_MAPPING[name](**copy.deepcopy(file))
        self.fields = {key: value for key, value in vars(self.config).items()}
        self.layers = self.config.num_hidden_layers
        self.kinds = kinds(self.config)
        self.tensors = tensors(self.config)

    def atom(self, atom, layer):
        """Whether a condition holds in a layer; the same as `host/model/src/kv/weights.rs` has."""
        kind, *words = atom
        value = [int(word) if word.isdigit() else self.fields.get(word) for word in words]
        if kind == "on":
            return bool(value[0])
        if kind == "off":
            return not value[0]
        if kind == "kind":
            return self.kinds[layer] in words[0] if self.kinds else None
        if kind == "is":
            return isinstance(value[0], list) and layer < len(value[0]) and value[0][layer] in words[1].split("|")
        if kind in ("in", "out"):
            return isinstance(value[0], list) and (layer in value[0]) == (kind == "in") or value[0] is None and kind == "out"
        if not is_number(value[0]):
            return None
        if kind in ("from", "before"):
            return (layer >= value[0]) == (kind == "from")
        if kind == "own":
            return layer < self.layers - value[0]
        if value[0] == 0:
            return None
        if kind == "each":
            return layer % value[0] == 0
        if kind == "end":
            return (layer + 1) % value[0] == 0
        return is_number(value[1]) and layer % value[0] == value[1]


def atoms(samples, layered, constants=False):
    """Conditions that differ among samples, those that files have first."""
    names = dict.fromkeys(key for sample in samples for key in sample.fields)
    values = {key: [sample.fields.get(key) for sample in samples] for key in names}
    varied = [key for key in names if len({bool(value) for value in values[key]}) > 1 and not isinstance(values[key][0], (dict, str)) and not key.startswith(("_", *NOT_SHAPES))]
    out = []
    if layered:
        out += [(kind, str(n)) for n in (1, 2, 3) for kind in ("from", "before")] if constants else []
        out += [("kind", kinds) for kinds in ("FSC", "F", "SC", "-")]
        numbers = [key for key in names if any(map(is_number, values[key])) and PLACES.search(key) and "size" not in key]
        for key in numbers:
            out += [("from", key), ("own", key), ("each", key), ("end", key), *([("before", key)] if constants else [])]
            out += [("at", key, other) for other in numbers if other != key and "offset" in other]
        out += [(kind, key) for kind in ("in", "out") for key in names if re.search("layers|idx|indices", key) and any(isinstance(value, list) and all(map(is_number, value)) for value in values[key])]
    out += [(kind, key) for key in varied for kind in ("on", "off")]
    return out


def lists(samples):
    """Lists with a word for each layer."""
    names = dict.fromkeys(key for sample in samples for key in sample.fields)
    is_list = lambda sample, value: isinstance(value, list) and len(value) == sample.layers and all(isinstance(one, str) for one in value)
    return [key for key in names if all(is_list(sample, sample.fields.get(key)) for sample in samples)]


def negated(condition):
    return [("not", *condition)] if len(condition) != 1 else [{"on": ("off", *condition[0][1:]), "off": ("on", *condition[0][1:])}.get(condition[0][0], ("not", *condition))]


def truths(places, samples, layered, listed=True):
    """Where each condition holds. A list with a word per layer is a condition for each set of words that there is."""
    out = [(atom, [sample.atom(atom, layer) for sample, layer in places]) for atom in atoms(samples, layered, not listed)]
    words = {key: [sample.fields[key][layer] for sample, layer in places] for key in (lists(samples) if layered and listed else [])}
    return out, words


def fitted(present, truth, known):
    """A conjunction of conditions that holds where `present` does, or None."""
    held = [i for i, one in enumerate(present) if one]
    candidates = list(truth[0])
    for key, of in truth[1].items():
        words = {of[i] for i in held}
        if len(words) < len(set(of)):
            candidates.append((("is", key, "|".join(sorted(words))), [word in words for word in of]))
    candidates = [(atom, values) for atom, values in candidates + known if all(values[i] for i in held)]
    not_held = [i for i, one in enumerate(present) if not one]
    excludes = lambda chosen: all(any(not values[i] for _, values in chosen) for i in not_held)
    if not excludes(candidates):
        return None
    # Those last in the list go first.
    for one in reversed(list(candidates)):
        rest = [other for other in candidates if other is not one]
        if excludes(rest):
            candidates = rest
    return [atom for atom, _ in candidates]


def terms(samples, layered):
    """Conditions and the expressions that they have."""
    places = [(sample, layer) for sample in samples for layer in (range(sample.layers) if layered else [None])]
    seen = collections.defaultdict(dict)
    for i, (sample, layer) in enumerate(places):
        for (at, role, text), (times, count) in sample.tensors.items():
            if at == layer:
                seen[role, text][i] = times
    truth, known, found = truths(places, samples, layered), [], {}
    todo = collections.defaultdict(list)
    for (role, text), times in seen.items():
        if set(times.values()) != {1}:
            of = lambda key, less: all(is_number(value := places[i][0].fields.get(key)) and value - less == n for i, n in times.items())
            keys = [key if not less else f"({key}-1)" for less in (0, 1) for key in samples[0].fields if of(key, less)]
            if not keys and len(set(times.values())) > 1:
                raise ValueError(f"{role} is there {sorted(set(times.values()))} times")
            text = f"{keys[0] if keys else next(iter(times.values()))}*{text}"
        todo[tuple(times)].append((role, text))
    while todo:
        before = len(todo)
        for held, parts in list(todo.items()):
            present = [False] * len(places)
            for i in held:
                present[i] = True
            condition = fitted(present, truth, known)
            if condition is not None:
                found[tuple(condition)] = found.get(tuple(condition), []) + [text for _, text in parts]
                del todo[held]
                if condition:
                    known.append((negated(condition)[0], [not one for one in present]))
        if len(todo) == before:
            raise ValueError("no condition for " + ", ".join(f"{role} {text}" for parts in todo.values() for role, text in parts)[:300])
    return [["+".join(texts), condition] for condition, texts in found.items()]


def shown(condition):
    """A condition as text."""
    if not condition or not isinstance(condition[0], str):
        return " & ".join(map(shown, condition))
    kind, *words = condition
    if kind == "not":
        return "!(" + shown(words) + ")"
    return {"on": "{0}", "off": "!{0}", "kind": "kind={0}", "is": "{0}[layer]={1}", "in": "layer in {0}", "out": "!(layer in {0})", "from": "layer>={0}", "before": "!(layer>={0})", "own": "layer<num_hidden_layers-{0}",
        "each": "layer%{0}=0", "end": "(layer+1)%{0}=0", "at": "layer%{0}={1}"}[kind].format(*words)  # fmt: skip


def needs(name):
    """A number without which no model of the family can be made."""
    for change in [{}, *(change for change in changes(name) if 64 in change.values())]:
        with contextlib.suppress(Exception):
            Sample(name, {layers_key(name): 6, **change})
            return change
    return {}


def samples(name, draw, count, first=False):
    """Configs with the tensors of their models; the first have each change alone."""
    found, last, turned, needed = [], None, list(changes(name)), needs(name)
    alone = list(turned) if first else []
    for _ in range(3 * count):
        file = {**drawn(name, draw), **needed}
        few = draw.sample(turned, min(len(turned), draw.randint(0, 3)))
        many = [change for change in turned if draw.random() < (0.5 if True in change.values() or False in change.values() else 0.1)]
        for change in [alone.pop()] if alone else draw.choice([few, many]):
            file.update(change)
        try:
            found.append(Sample(name, file))
        except Exception as error:
            last = error
        if not alone and len(found) >= count:
            break
    if len(found) < 8:
        raise ValueError(f"{len(found)} samples: {last!r}")
    return found


def holds(condition, sample, layer):
    if condition and isinstance(condition[0], str):
        return not holds(condition[1:], sample, layer) if condition[0] == "not" else bool(sample.atom(condition, layer))
    return all(holds(part, sample, layer) for part in condition)


def counted(found, sample, layer):
    """The weights of a layer, or outside the layers, by terms."""
    own = lambda value: value[layer] if isinstance(value, list) and layer is not None and layer < len(value) else value
    fields = {key: own(value) for key, value in sample.fields.items()} | {"global_head_dim": 512, "int": int, "ceil": math.ceil}
    return sum(eval(text, {}, fields) for text, condition in found if holds(condition, sample, layer))


def is_right(beside, layer, sample):
    actual = collections.Counter()
    for (at, _, _), (times, count) in sample.tensors.items():
        actual[at] += times * count
    try:
        return all(counted(beside if at is None else layer, sample, at) == actual[at] for at in (None, *range(sample.layers)))
    except TypeError:
        return False


def learnt(name):
    """Terms that are right for files that were not drawn for them, and the samples that they are from."""
    draw = random.Random(1)
    found = samples(name, draw, 40, first=True)
    for _ in range(ROUNDS):
        beside, layer = terms(found, False), terms(found, True)
        wrong = [sample for sample in samples(name, draw, 25) if not is_right(beside, layer, sample)]
        if not wrong:
            return beside, layer, found
        found += wrong
    raise ValueError(f"wrong for {len(wrong)} of 25 files: {wrong[0].file}")


def derived(name, keys, null=False):
    """What a key stands for where a file leaves it out, or has null."""
    made, out = CONFIG_MAPPING[name], {}
    base = made()
    numbers = {key: (Key if is_number(value) else Real)(value, key) for key, value in vars(base).items() if is_real(value) and key not in ("pad_token_id", "bos_token_id", "eos_token_id")}
    for key in keys:
        value = None if null else vars(base).get(key)
        try:
            config = made(**{other: number for other, number in numbers.items() if other != key}, **({key: None} if null else {}))
            found = vars(config).get(key)
            value = found.text if isinstance(found, Named) else found if null else value
        except Exception:
            pass
        if key == "global_head_dim" and not null:
            value = 512
        if isinstance(value, list) and value and all(one == value[0] and is_number(one) for one in value):
            value = value[0]
        if value is not None and (isinstance(value, (bool, int, float, str)) or value == []):
            out[key] = value
    return out


def row(name):
    for module in modules(name):
        module.int = Int
    beside, layer, found = learnt(name)
    if not has_head(name):
        # The head is in the model around it.
        beside.append(["vocab_size*hidden_size", [("off", "tie_word_embeddings")]])
    used = dict.fromkeys(re.findall(r"[A-Za-z_]\w*", " ".join(text for text, _ in beside + layer)))
    atoms = [atom for _, condition in beside + layer for atom in flat(condition)]
    words = {atom[1] for atom in atoms if atom[0] == "is"}
    rules = {}
    for key in sorted({atom[1] for atom in atoms if atom[0] in ("in", "out")}):
        without = [sample for sample in found if key not in sample.file and isinstance(sample.fields.get(key), list)]
        places = [(sample, at) for sample in without for at in range(sample.layers)]
        present = [at in sample.fields[key] for sample, at in places]
        if any(present):
            condition = fitted(present, truths(places, without, True, False), [])
            if condition is None:
                raise ValueError(f"no rule for {key}")
            atoms += flat(condition)
            rules[key] = {"in": shown(condition)}
    for key in sorted(words):
        without = [sample for sample in found if key not in sample.file]
        places = [(sample, at) for sample in without for at in range(sample.layers)]
        values, truth = [sample.fields[key][at] for sample, at in places], truths(places, without, True, False)
        rules[key] = {}
        for word in sorted(set(values)):
            condition = fitted([value == word for value in values], truth, [])
            if condition is None:
                # A file must have this list.
                del rules[key]
                break
            atoms += flat(condition)
            rules[key][word] = shown(condition)
    for atom in atoms:
        if atom[0] != "kind":
            used.update(dict.fromkeys(word for word in atom[1 : 3 if atom[0] == "at" else 2] if not word.isdigit()))
    line = {"model_type": name, "beside": [[text, shown(c)] for text, c in beside], "layer": [[text, shown(c)] for text, c in layer]}
    strange = [n for text in (text for text, _ in beside + layer) for n in re.findall(r"(?<![a-z_0-9.])\d+", text) if int(n) > 256]
    if strange:
        raise ValueError(f"numbers without a key: {strange}")
    keys = [key for key in used if key not in words]
    line["defaults"], nulls = derived(name, keys), derived(name, keys, null=True)
    nulls = {key: value for key, value in nulls.items() if line["defaults"].get(key) != value}
    return {**line, **({"nulls": nulls} if nulls else {}), **({"lists": rules} if rules else {})}


def flat(condition):
    """The single conditions in one."""
    if condition and isinstance(condition[0], str):
        return flat(condition[1:]) if condition[0] == "not" else [condition]
    return [atom for part in condition for atom in flat(part)]


def compact(line):
    """Expressions with equal summands counted."""
    for key in ("beside", "layer"):
        for term in line[key]:
            parts = collections.Counter(split(term[0]))
            term[0] = "+".join(part if n == 1 else f"{n}*{part}" for part, n in parts.items())
    return line


def split(text):
    """The summands of an expression."""
    out, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and not depth:
            out.append("")
        else:
            out[-1] += letter
    return out


def lines(names):
    """The rows of the families that have one, as they are found."""
    for name in names:
        try:
            yield compact(row(name))
            print(name, file=sys.stderr, flush=True)
        except Exception as error:
            print(name, repr(error)[:300], file=sys.stderr, flush=True)


def count(config):
    """The weights outside the layers, and of each layer, as the library has them."""
    with torch.device("meta"):
        model = made(copy.deepcopy(config))
    counts = collections.Counter({None: 0 if has_head(config.model_type) or getattr(config, "tie_word_embeddings", False) else config.vocab_size * config.hidden_size})
    for name, parameter in model.named_parameters():
        counts[place(name)[0]] += parameter.numel()
    # A decoder may have other layers than the config says of the model.
    return [counts[None], *(counts[layer] for layer in range(1 + max(layer for layer in counts if layer is not None)))]


def rows():
    return {line["model_type"]: line for line in map(json.loads, TABLE.read_text().splitlines())}


def cases(name, number=6):
    """Files of a family, at its own size and tiny, and their counts: outside the layers, of the largest layer, and of all."""
    draw, needed = random.Random(name), needs(name)
    files = [{}, *(file for _, file in variants(name)), *(drawn(name, draw) for _ in range(number))]
    for file in files[:1] + draw.sample(files[1:], min(number, len(files) - 1)):
        file = {"model_type": name, **needed, **json.loads(json.dumps(file))}
        try:
            found = count(CONFIG_MAPPING[name].from_dict(copy.deepcopy(file)))
        except Exception:
            continue
        yield file, [found[0], max(found[1:]), sum(found)]


def as_frozen(file, counts, row):
    """A line of the frozen cases: the keys that a count may read."""
    names = getattr(CONFIG_MAPPING[file["model_type"]], "attribute_map", {})
    read = READ | set(row["defaults"]) | set(row.get("nulls", ())) | set(row.get("lists", ()))
    read |= set(re.findall(r"[A-Za-z_]\w*", " ".join(text for pair in row["beside"] + row["layer"] for text in pair)))
    read |= set(families()[file["model_type"]].get("names", {}).values())
    read |= {own for common, own in names.items() if common in read} | {common for common, own in names.items() if own in read}
    return {"config": {key: value for key, value in file.items() if key in read}, "weights": counts}


def frozen(names):
    """The lines of all cases, each once."""
    known, out = rows(), {}
    for name in names:
        for file, counts in cases(name):
            line = as_frozen(file, counts, known[name])
            out[json.dumps(line, sort_keys=True)] = line
    return list(out.values())


if __name__ == "__main__":
    quiet()
    what, *chosen = sys.argv[1:]
    if what == "table":
        found = {line["model_type"]: line for line in lines(chosen or names())}
        found.update({name: {**found[other], "model_type": name} for name, other in SAME.items() if other in found})
        write(TABLE, [found[name] for name in sorted(found)])
    elif what == "cases":
        write(CASES, frozen(chosen or [name for name in rows() if name not in SAME]))
    else:
        for line in lines([what, *chosen]):
            print(json.dumps(line), flush=True)
