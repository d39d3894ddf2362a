"""The families of Transformers for `tqkv plan`: what a missing key of a `config.json` stands for, and what a model of each family keeps per
layer in the library's own cache.

    python plan_families.py table      writes the table of families, `TABLE`
    python plan_families.py cases      writes the frozen cases, `CASES`
    python plan_families.py NAME..     prints the cases of some families"""

import copy
import inspect
import json
import sys
import warnings
from pathlib import Path

import torch
import transformers
from test_families import tiny
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import get_layer_types_and_kwargs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "host/model/src/kv/families.jsonl"
CASES = ROOT / "host/model/tests/golden/kv_cases.jsonl"

TOKENS, LAYERS = 3, 4
MOST_PARAMETERS = 30_000_000
NAMED = "num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_size sliding_window max_position_embeddings".split()
"""Keys that families call otherwise. The decoder counts where a family has an encoder too."""
DECODER = {"num_hidden_layers": ("decoder_layers", "num_decoder_layers"), "num_attention_heads": ("decoder_attention_heads", "num_decoder_attention_heads")}
DEFAULTS = NAMED + (
    "v_head_dim kv_lora_rank qk_rope_head_dim num_kv_shared_layers attention_k_eq_v global_head_dim num_global_key_value_heads swa_head_dim "
    "swa_num_key_value_heads swa_v_head_dim multi_query new_decoder_architecture use_sliding_window max_window_layers attention_chunk_size "
    "attn_layer_period attn_layer_offset full_attention_interval block_types attn_config".split()
)
READ = set(NAMED) | set(DEFAULTS) | set(
    "model_type architectures layer_types layers_block_type hybrid_override_pattern attn_layer_indices full_attn_idxs attn_type_list "
    "linear_attn_config per_layer_config sliding_window_pattern _sliding_window_pattern attention_window_size block_configs "
    "num_query_heads num_kv_heads text_config sliding_window_size local_layer_ids no_rope_layers no_rope_layer_interval".split()
)
"""Keys that a plan reads, by one name or another. The frozen cases have these alone."""
KINDS = {"full_attention": "F", "sliding_attention": "S", "hybrid": "F", "hybrid_sliding": "S", "chunked_attention": "C", "linear_attention": "-", "conv": "-",
    "dummy": "-", "indexed_attention": "F", "minimax_m3_sparse": "F"}
RULES = {"falcon": "falcon", "RefinedWeb": "falcon", "RefinedWebModel": "falcon", "gpt_bigcode": "multi_query", "mpt": "attn_config", "dbrx": "attn_config",
    "mimo_v2_flash": "mimo", "nemotron-nas": "block_configs", "deci": "block_configs", "longcat_flash": "twice", "chatglm": "chatglm"}
"""Families whose numbers follow from keys of their own, and the rule in `host/model/src/kv`."""
REFUSED = {
    "deepseek_v4": "its layers keep keys of several tokens in one",
    "dory": "its layers run several times, with keys of their own each time",
    "hrm_text": "its layers run several times, with keys of their own each time",
    "inkling2_loop_text": "its layers run several times, with keys of their own each time",
    "dots3_note_text": "its layers with a window have latent vectors of another width, which no key names",
    "modernbert-decoder": "its window follows from another key",
    "openai-gpt": "Transformers keeps no keys and values for it",
    "xlnet": "Transformers keeps no keys and values for it",
    "embedding_gemma2_text": "it attends to later tokens too",
}
"""Families whose cache no list of layers describes, and why."""
NEEDS = {"nemotron_h": ["layers_block_type", "hybrid_override_pattern", "layer_types"], "zamba": ["attention_head_dim"], "zamba2": ["attention_head_dim"]}
"""Families with a key whose default follows from others: one of the keys must be in the file."""
ELSEWHERE = {
    "openelm": dict(names={"num_hidden_layers": "num_transformer_layers", "num_attention_heads": "num_query_heads", "num_key_value_heads": "num_kv_heads",
        "hidden_size": "model_dim", "max_position_embeddings": "max_context_length"}),
    "nemotron-nas": {},
    "deci": {},
    "RefinedWeb": dict(names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "n_head_kv"}),
    "RefinedWebModel": dict(names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "num_key_value_heads": "n_head_kv"}),
    "chatglm": dict(names={"num_hidden_layers": "num_layers", "num_key_value_heads": "multi_query_group_num", "head_dim": "kv_channels", "max_position_embeddings": "seq_length"}),
    "internlm2": {},
    "internlm": {},
    "baichuan": dict(names={"max_position_embeddings": "model_max_length"}),
    "minicpm": {},
    "kimi_k2": {},
}
"""Families of the hub whose code is not part of Transformers."""


def sliding(config):
    return hasattr(type(config), "sliding_window") or "sliding_window" in type(config).attribute_map


def letters(config):
    """A letter for the kind of each layer, from the library's rule for caches."""
    return "".join(KINDS[kind] for kind in get_layer_types_and_kwargs(config)[0])


def pattern(made):
    """Kinds of layers where a file names none: a period, with other letters for the first and the last layer. None if there is no such rule."""
    found = {}
    for layers in (13, 24, 30):
        more = {"sliding_window": 16} if sliding(made()) else {}
        config = made(num_hidden_layers=layers, **more)
        found[layers] = letters(config)
        if len(found[layers]) != layers:
            return None
    for first in (False, True):
        for last in (False, True):
            for period in range(1, 13):
                ends = lambda kinds: (kinds[0] if first else "", kinds[-1] if last else "")
                repeat = lambda kinds: (found[30][first : 0 + first] or "") + "".join(found[30][first + (i - first) % period] for i in range(len(kinds)))
                base = found[30]
                # The letter of layer i is that of i modulo the period, counted from layer 0.
                unit = [base[i + period if i == 0 and first else i] for i in range(period)]
                whole = lambda n: "".join((base[0] if first and i == 0 else base[-1] if last and i == n - 1 else unit[i % period]) for i in range(n))
                if all(whole(n) == kinds for n, kinds in found.items()):
                    return ["".join(unit), base[0] if first else "", base[-1] if last else ""]
    return None


def plain(value):
    return value is not None and not isinstance(value, (property, transformers.PretrainedConfig)) and type(value).__module__ == "builtins" and not callable(value)


def entry(name):
    """The line of a family in the table."""
    made = CONFIG_MAPPING[name]
    line = {"model_type": name}
    base = None
    try:
        base = made()
        text = base.get_text_config(decoder=True)
        if text is not base and not isinstance(text, made):
            key = next(key for key in ("text_config", "decoder", "generator") if getattr(base, key, None) is text)
            flat = made(num_hidden_layers=5).get_text_config(decoder=True).num_hidden_layers == 5
            return {**line, "text": [key, text.model_type], **({"flat": True} if flat else {})}
    except Exception:
        pass
    names = {key: made.attribute_map[key] for key in NAMED if key in made.attribute_map}
    for key, own in DECODER.items():
        names.update({key: word for word in own if hasattr(made, word)})
    if "decoder" in names.get("num_attention_heads", ""):
        names.pop("num_key_value_heads", None)
    if name == "cpmant":
        names["head_dim"] = "dim_head"
    defaults = {key: getattr(made, names.get(key, key), None) for key in DEFAULTS}
    if names:
        line["names"] = names
    line["defaults"] = {key: value for key, value in defaults.items() if plain(value)}
    if "decoder" in names.get("num_attention_heads", ""):
        line["defaults"].pop("num_key_value_heads", None)
    if name.startswith("gemma4"):
        line["defaults"]["global_head_dim"] = 512
    if name == "dbrx":
        line["defaults"]["attn_config"] = {"kv_n_heads": 1}
    if not (hasattr(made, "sliding_window") or "sliding_window" in made.attribute_map):
        line["ignores"] = ["sliding_window"]
    if name == "qwen3_moe":
        # With a window all of its layers slide.
        line["defaults"]["max_window_layers"], line["ignores"] = 0, ["max_window_layers"]
    if name == "whisper":
        line["ignores"].append("per_layer_config")
    try:
        kinds = pattern(made)
    except Exception:
        kinds = None
    if kinds:
        line["kinds"] = kinds
    if name in RULES:
        line["rule"] = RULES[name]
    if name in NEEDS:
        line["needs"] = NEEDS[name]
    if name in REFUSED:
        line = {"model_type": name, "refused": REFUSED[name]}
    return line


def table():
    """All lines: families with a causal model, those inside them, and some of the hub."""
    names, lines = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), {}
    for name in sorted(CONFIG_MAPPING):
        try:
            line = entry(name)
        except Exception as error:
            print(name, "has no entry:", repr(error)[:100], file=sys.stderr)
            continue
        # Text models inside others, but no encoders.
        inner = line.get("text", ["", ""])[1]
        if inner in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or inner.endswith("_text"):
            names |= {name, inner}
        elif "text" in line:
            continue
        lines[name] = line
    classes = {name: one if isinstance(one, str) else one[0] for name, one in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    out = []
    for name in sorted(names & set(lines)):
        # Some families share the class of another.
        if "text" not in lines[name] and name in classes and getattr(transformers, classes[name]).config_class.model_type == name:
            lines[name]["class"] = classes[name]
        out.append(lines[name])
    for name, line in ELSEWHERE.items():
        rule = {"rule": RULES[name]} if name in RULES else {}
        out.append({"model_type": name, **line, **rule})
    return out


def held(config):
    """What each layer keeps: a letter of its window, KV heads, and coordinates of a key and of a value; or why it is not known."""
    last, auto = None, AutoModelForCausalLM if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else AutoModel
    for device in ("meta", "cpu"):
        try:
            with torch.device("meta"):
                model = auto.from_config(copy.deepcopy(config), dtype=torch.float32).eval()
            if device == "cpu":
                # Routers and the like need numbers. A large model is never made.
                if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
                    break
                model = auto.from_config(copy.deepcopy(config), dtype=torch.float32).eval()
            with torch.device(device):
                name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
                cache = DynamicCache(config=model.config)
                with torch.no_grad():
                    model(torch.ones((1, TOKENS), dtype=torch.long), **{name: cache})
            return without_end([layer_held(layer) for layer in cache.layers])
        except Exception as error:
            last = error
    return f"{type(last).__name__}: {last}".split("\n")[0][:120]


def without_end(layers):
    """Layers without the last ones that keep nothing: a cache may be made for an encoder's layers too."""
    return layers[: max((i + 1 for i, layer in enumerate(layers) if layer is not None), default=0)]


def layer_held(layer):
    keys, values = (getattr(layer, side, None) for side in ("keys", "values"))
    if not torch.is_tensor(keys) or keys.dim() != 4:
        return None
    if type(layer).__name__.startswith("DeepseekV4"):
        return "compressed"
    return [getattr(layer, "sliding_window", None) or 0, keys.shape[1], keys.shape[3], values.shape[3]]


CHANGES = [
    {}, dict(num_key_value_heads=1), dict(num_key_value_heads=4), dict(head_dim=16), dict(head_dim=64), dict(sliding_window=None), dict(sliding_window=8),
    dict(sliding_window_size=8), dict(v_head_dim=16), dict(kv_lora_rank=32), dict(qk_rope_head_dim=8), dict(global_head_dim=64),
    dict(num_global_key_value_heads=1, attention_k_eq_v=True), dict(num_global_key_value_heads=1), dict(num_kv_shared_layers=0), dict(swa_head_dim=64),
    dict(swa_num_key_value_heads=1), dict(multi_query=False), dict(multi_query=True), dict(new_decoder_architecture=True),
    dict(new_decoder_architecture=True, num_kv_heads=1), dict(use_sliding_window=True), dict(use_sliding_window=True, max_window_layers=2),
    dict(attention_chunk_size=16), dict(num_attention_heads=8, n_head=8, n_heads=8), dict(num_hidden_layers=7, n_layer=7, n_layers=7),
    dict(per_layer_config={"1": {"num_key_value_heads": 1}}),
]  # fmt: skip
"""Changes of keys. A family whose config has none of the keys is not changed."""
DROPS = ["num_key_value_heads", "head_dim", "layer_types", "sliding_window", "layers_block_type"]
"""Keys that a file may leave out."""


def has(config, key):
    own = set(vars(config)) | set(type(config).attribute_map)
    if key in ("global_head_dim", "num_global_key_value_heads"):
        return config.model_type.startswith("gemma4")
    if key == "sliding_window_size":
        return config.model_type.startswith("inkling")
    return key in own


def variants(name):
    """Files of a family: the tiny one, with other numbers, and with keys left out."""
    # The defaults of the family, in few layers.
    layers = getattr(CONFIG_MAPPING[name], "attribute_map", {}).get("num_hidden_layers", "num_hidden_layers")
    yield {"only": "model_type"}, {"model_type": name, layers: LAYERS}
    try:
        base = tiny(name)
    except Exception:
        base = None
    if base is None:
        return
    made = type(base)
    for change in CHANGES:
        own = {key: value for key, value in change.items() if has(base, key) or key == "per_layer_config" and has(base, "num_key_value_heads")}
        if change and (not own or len(own) < len(change) and not ("n_head" in change or "n_layer" in change)):
            continue
        if "num_hidden_layers" in change:
            own.update(layer_types=None) if has(base, "layer_types") else None
        if "n_head" in change or "n_layer" in change:
            own = {made.attribute_map.get(key, key): value for key, value in own.items() if made.attribute_map.get(key, key) in vars(base) or key == "layer_types"}
        try:
            yield change, tiny(name, **own).to_diff_dict()
        except Exception:
            continue
    whole = base.to_diff_dict()
    for key in DROPS:
        key = made.attribute_map.get(key, key) if key not in whole else key
        if key in whole:
            yield {"without": key}, {own: value for own, value in whole.items() if own != key}


def cases(name):
    """Files of a family and what the library keeps for them."""
    for change, file in variants(name):
        file = json.loads(json.dumps(file))
        file.setdefault("model_type", name)
        try:
            config = CONFIG_MAPPING[name].from_dict(copy.deepcopy(file))
        except Exception as error:
            yield change, file, f"no config: {error!r}"[:120]
            continue
        layers = held(config)
        if name == "falcon" and config.new_decoder_architecture and not isinstance(layers, str):
            # The library repeats the KV heads for every query head before it caches them. Other engines do not.
            layers = [[window, config.num_kv_heads, key, value] for window, _, key, value in layers]
        yield change, file, layers


def quiet():
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def families():
    """The families with a model that can be made here."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def as_frozen(file, layers):
    """A line of the frozen cases: the keys that a plan reads."""
    line = next((line for line in map(json.loads, TABLE.read_text().splitlines()) if line["model_type"] == file["model_type"]), {})
    read = READ | set(line.get("names", {}).values())
    return {"config": {key: value for key, value in file.items() if key in read}, "layers": layers}


def frozen(names):
    """The lines of all cases that could be made, each once."""
    lines = {}
    for name in names:
        for _, file, layers in cases(name):
            if not isinstance(layers, str) and "compressed" not in layers:
                line = as_frozen(file, layers)
                lines[json.dumps(line, sort_keys=True)] = line
    return list(lines.values())


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


if __name__ == "__main__":
    quiet()
    if sys.argv[1:] == ["table"]:
        write(TABLE, table())
    elif sys.argv[1:] == ["cases"]:
        write(CASES, frozen(families()))
    for name in sys.argv[1:]:
        if name in CONFIG_MAPPING:
            for change, file, expected in cases(name):
                print(json.dumps([name, change, file, expected]), flush=True)
