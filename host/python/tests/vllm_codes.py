"""An engine of vLLM whose attention reads codes, for `test_vllm_attention.py`, and what it ought to have computed.

    python vllm_codes.py MODEL OPTIONS

The engine's steps are written down: tokens, positions, slots, block tables, lengths and logits. Then a Llama of Transformers computes each
step again: keys and values go through `tqkv.Codec` into a table of slots, and PyTorch's attention sees them. OPTIONS are a JSON object:
arguments of `LLM` in "engine", requests `[prompt, sampling parameters]` in "requests", whether to replay in "replay", in "flash" whether
there is a function like FlashAttention's, layers without codes in "native", learned sinks of all layers in "sinks", and in "offloads" whether blocks
may leave for main memory as from a GPU. Requests write their text
of "answers" where it is not null. With "stays" the engine ends with its standard input. The logits of what they write go to the file "logits", `[of the engine, of the replay]` by request. Without
`TQKV_VLLM` the engine has its own cache, and nothing is replayed. Prints what happened.
"""

import collections
import functools
import json
import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
os.environ["TORCH_COMPILE_DISABLE"] = "1"

import torch
from vllm import LLM, SamplingParams


class Record:
    """Steps of an engine, and how often it did what."""

    def __init__(self):
        self.steps, self.counts, self.layers = [], collections.Counter(), {}

    def count(self):
        """How many rows steps have beyond one for each request that decodes."""
        from tqkv.vllm_attention import TqkvBuilder

        build = TqkvBuilder.build

        def builds(builder, common_prefix_len, step, fast_build=False):
            built = build(builder, common_prefix_len, step, fast_build)
            prompts = sum(len(of.queries) for of in built.prompts)
            self.counts["drafted rows"] += built.decodes - min(step.num_reqs - prompts, built.decodes)
            self.counts["steps"] += 1
            self.counts["tokens"] += step.num_actual_tokens
            return built

        TqkvBuilder.build = builds

    def watch(self, engine):
        from tqkv.vllm_attention import TqkvBuilder

        core = engine.llm_engine.engine_core.engine_core
        worker = core.model_executor.driver_worker
        self.runner = worker.worker.model_runner
        model, preempt = self.runner.model, core.scheduler._preempt_request
        forward, logits, build = model.forward, model.compute_logits, TqkvBuilder.build

        def preempts(*given, **named):
            self.counts["preempted"] += 1
            return preempt(*given, **named)

        def builds(builder, common_prefix_len, step, fast_build=False):
            names = ("query_start_loc", "seq_lens", "block_table_tensor", "slot_mapping")
            built = {name: getattr(step, name).clone() for name in names}
            # Layers of one kind have their own blocks.
            self.layers |= {int(name.split("layers.")[1].split(".")[0]): built for name in builder.layer_names}
            return build(builder, common_prefix_len, step, fast_build)

        def forwards(input_ids, positions, *given, **named):
            [built, *_] = self.layers.values()
            self.now = built | {"ids": input_ids.clone(), "positions": positions.clone(), "layers": dict(self.layers)}
            return forward(input_ids, positions, *given, **named)

        def computes(hidden, *given, **named):
            got = logits(hidden, *given, **named)
            self.end(got.float().clone())
            return got

        core.scheduler._preempt_request, TqkvBuilder.build = preempts, builds
        model.forward, model.compute_logits = forwards, computes

    def end(self, logits):
        requests = self.runner.input_batch.req_ids[: len(logits)]
        starts, lengths = self.now["query_start_loc"].tolist(), self.now["seq_lens"].tolist()
        known = [self.runner.requests[name].num_tokens for name in requests]
        self.steps.append(self.now | {"logits": logits, "requests": requests, "known": known})
        queries = [end - start for start, end in zip(starts, starts[1:])]
        for query, length, tokens in zip(queries, lengths, known):
            self.counts["decoded"] += query == 1
            self.counts["fresh prompts"] += 1 < query == length
            self.counts["prompts after codes"] += 1 < query < length
            self.counts["parts of prompts"] += length < tokens
        self.counts["mixed steps"] += 1 in queries and max(queries) > 1
        shared = self.now["block_table_tensor"][:, 0].tolist()[: len(requests)]
        self.counts["steps with shared blocks"] += len(set(shared)) < len(shared)


class Answers:
    """Lets requests write what they are told, and keeps the logits of the steps that choose tokens."""

    def __init__(self, engine, answers):
        self.runner = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self.answers, self.logits = answers, collections.defaultdict(list)
        execute, compute = self.runner.execute_model, self.runner.model.compute_logits

        def executes(scheduled, *given, **named):
            self.scheduled = scheduled.num_scheduled_tokens
            return execute(scheduled, *given, **named)

        def computes(hidden, *given, **named):
            return self.instead(compute(hidden, *given, **named))

        self.runner.execute_model, self.runner.model.compute_logits = executes, computes

    def instead(self, logits):
        batch = self.runner.input_batch
        for row, name in enumerate(batch.req_ids[: len(logits)]):
            request, state = number(name), self.runner.requests[name]
            # Of a prompt that is cut only the last part chooses a token.
            if batch.num_computed_tokens_cpu[row] + self.scheduled[name] < state.num_tokens:
                continue
            self.logits[request].append(logits[row].float().clone())
            if self.answers[request] is not None:
                logits[row] = -torch.inf
                logits[row, self.answers[request][state.num_tokens - state.num_prompt_tokens]] = 0
        return logits


def number(name):
    """The number of a request among those of OPTIONS, by the name that the engine gave it, or to one of its samples."""
    return int(name.split("-")[0].split("_")[-1])


def exact(q, k, v, window=None, sinks=None, soft_cap=None):
    """Attention in f32 of the newest tokens of a sequence, `[tokens, heads, head_dim]`, to the newest `window` tokens. Returns also the
    logarithms of the sums of exponentials, `[heads, tokens]`. `sinks` are one more logit of each head, which no soft cap touches."""
    apart = len(k) - len(q) + torch.arange(len(q))[:, None] - torch.arange(len(k))
    sees = (apart >= 0) & (apart < (window or len(k)))
    q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    logits = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
    if soft_cap is not None:
        logits = soft_cap * (logits / soft_cap).tanh()
    logits = logits.masked_fill(~sees, -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.view(-1, 1, 1).expand(-1, len(sees), 1)], -1)
    return (logits.softmax(-1)[..., : len(k[0])] @ v).transpose(0, 1), logits.logsumexp(-1)


def flash(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, window_size, return_softmax_lse, fa_version):
    """What FlashAttention computes."""
    assert causal and return_softmax_lse and fa_version == 2 and softmax_scale == q.shape[-1] ** -0.5
    queries, lengths = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert (max_seqlen_q, max_seqlen_k, len(q), len(k), len(v)) == (max(queries), max(lengths), sum(queries), sum(lengths), sum(lengths))
    assert window_size is None or window_size[1] == 0
    parts = zip(q.split(queries), k.split(lengths), v.split(lengths))
    out, lse = zip(*(exact(*part, window_size and window_size[0] + 1) for part in parts))
    return torch.cat(out).to(q.dtype), torch.cat(lse, -1)


class Exact:
    """Which tokens are exact: runs of 16 of which a request keeps some of the first and the newest, in rows for a number of requests."""

    def __init__(self, requests, sinks, hot):
        self.first, self.newest = -(-sinks // 16), (-(-hot // 16) + 1 if hot else 0)
        self.rows, self.step = [(0, None)] * requests * (self.first + self.newest), 0

    def run(self, table, token):
        return table[token // 64] * 4 + token % 64 // 16

    def wanted(self, length):
        runs = range(-(-length // 16))
        return [16 * run for run in runs if run < self.first or run >= len(runs) - self.newest]

    def column(self, token, length):
        """The first runs are counted from the beginning, and the newest from the end."""
        run = token // 16
        return run if run < self.first else self.first + self.newest + run - -(-length // 16)

    def begin(self, step):
        """Rows are given to runs that begin in a step: first free ones, then those that were not used for the longest time. The first runs
        of all requests come before their newest."""
        self.step += 1
        begun = {slot // 16 for slot in step["slot_mapping"].tolist() if slot >= 0 and slot % 16 == 0}
        requests = list(zip(step["block_table_tensor"].tolist(), step["seq_lens"].tolist()))
        wanted = [(table, token, length) for table, length in requests for token in self.wanted(length)]
        wanted = [self.run(table, token) for table, token, _ in sorted(wanted, key=lambda of: self.column(*of[1:]))]
        held = [run for _, run in self.rows]
        for run in set(wanted) & set(held):
            self.rows[held.index(run)] = self.step, run
        order = sorted(range(len(self.rows)), key=lambda row: self.rows[row][0])
        for run in (run for run in dict.fromkeys(wanted) if run in begun and run not in held):
            if order and self.rows[order[0]][0] < self.step:
                self.rows[order.pop(0)] = self.step, run

    def of(self, table, length, decodes):
        """The exact ones among the first tokens of a request. Those that a decoded token sees have codes between them."""
        held = {run for _, run in self.rows}
        tokens = [token for token in self.wanted(length) if self.run(table, token) in held]
        if decodes:
            shown = set(tokens)
            after = {token for token in tokens if all(at in shown for at in range(token, length, 16))}
            first = {token for token in tokens[: self.first] if all(at in shown for at in range(0, token, 16))}
            tokens = [token for token in tokens if token in first | {token for token in after if token >= 16 * self.first}]
        return {token + i for token in tokens for i in range(16) if token + i < length}


class Reference:
    """A Llama of Transformers whose attention sees keys and values as the codec has them, but for exact tokens."""

    def __init__(self, folder, kv, dtype, native, requests, sinks):
        from transformers import AttentionInterface, AutoModelForCausalLM

        import tqkv

        AttentionInterface.register("codes", self.attend)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="codes").eval()
        dim = self.model.config.head_dim
        codecs, *words = kv.split()
        names, words = codecs.split(","), dict(word.split("=") for word in words)
        policy = [int(words.get(name, 16)) for name in ("sinks", "hot")]
        self.codecs = [tqkv.Codec(name, dim) for name in (names[0], names[-1])]
        self.slots, self.native, self.exact = collections.defaultdict(dict), native, collections.defaultdict(lambda: Exact(requests, *policy))
        self.tokens, self.sinks = collections.Counter(), sinks

    def attend(self, module, q, k, v, mask, **named):
        slots, step, exact_tokens = self.slots[module.layer_idx], self.step["layers"].get(module.layer_idx, self.step), self.exact[module.layer_idx]
        exact_tokens.begin(step)
        kinds = getattr(module.config, "layer_types", None)
        window = getattr(module.config, "sliding_window", None) if not kinds or kinds[module.layer_idx] == "sliding_attention" else None
        soft_cap = getattr(module.config, "attn_logit_softcapping", None)
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        coded = [x.float().contiguous() for x in (k, v)]
        if module.layer_idx not in self.native:
            coded = [codec.decode(codec.encode(x), torch.float32) for codec, x in zip(self.codecs, coded)]
        for row, slot in enumerate(step["slot_mapping"].tolist()):
            if slot >= 0:
                slots[slot] = (coded[0][row], coded[1][row]), (k[row].float(), v[row].float())
        out, starts, decodes = torch.zeros_like(q), step["query_start_loc"].tolist(), True
        for request, length in enumerate(step["seq_lens"].tolist()):
            start, end = starts[request : request + 2]
            table = step["block_table_tensor"][request].tolist()
            # What is decoded comes first, and attends to its own code too.
            decodes &= end - start == 1
            own = start if decodes else end
            earlier = length - (own - start)
            kept = exact_tokens.of(table, earlier, decodes)
            # The engine has given away blocks that left the window.
            first = max(length - (end - start) - window + 1, 0) if window else 0
            held = [slots[table[at // 64] * 64 + at % 64][at in kept] for at in range(first, earlier)]
            count = sum(at in kept for at in range(first, earlier))
            self.tokens["exact of a decoded token" if decodes else "exact of a prompt"] += count
            self.tokens["codes"] += len(held) - count
            keys, values = (torch.stack([*old, *new[start:own].float()]) for old, new in zip(zip(*held) if held else ((), ()), (k, v)))
            of, _ = exact(q[start:end], keys, values, window, self.sinks, soft_cap)
            out[start:end] = of.to(q.dtype)
        return out.unsqueeze(0), None

    @torch.no_grad()
    def logits(self, step):
        """Logits of the last token of each request of a step."""
        self.step, last = step, step["query_start_loc"][1 : len(step["requests"]) + 1].long() - 1
        return self.model(input_ids=step["ids"][None], position_ids=step["positions"][None], use_cache=False).logits[0, last].float()


def main(folder, options):
    options = json.loads(options)
    sinks = torch.tensor(options["sinks"]) if "sinks" in options else None
    if sinks is not None:
        from tqkv import vllm_attention

        vllm_attention.TqkvImpl.__init__ = functools.partialmethod(vllm_attention.TqkvImpl.__init__, sinks=sinks)
    dtype = options["engine"].get("dtype", "float32")
    if options.get("flash"):
        from vllm.v1.attention.backends import fa_utils

        fa_utils.is_flash_attn_varlen_func_available = lambda: True
        fa_utils.get_flash_attn_version = lambda **given: 2
        fa_utils.flash_attn_varlen_func = flash
    if options.get("offloads"):
        import vllm_engine

        vllm_engine.pretend()
    engine = LLM(
        folder,
        **{"skip_tokenizer_init": True, "dtype": "float32", "max_model_len": 512, "enforce_eager": True, "seed": 1} | options["engine"],
    )
    coded = bool(os.environ.get("TQKV_VLLM"))
    replay, record = coded and options.get("replay", True), Record()
    if replay:
        record.watch(engine)
    elif coded:
        record.count()
    answers = Answers(engine, options.get("answers", [None] * len(options["requests"]))) if "logits" in options else None
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in options["requests"]]
    sampling = [SamplingParams(**{"ignore_eos": True, "detokenize": False} | given) for _, given in options["requests"]]
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    result = {"tokens": [[list(one.token_ids) for one in output.outputs] for output in outputs]}
    result |= {"cached": [output.num_cached_tokens for output in outputs], "counts": record.counts}
    result |= {"transfer": [output.kv_transfer_params for output in outputs]}
    if replay:
        requests = min(int(os.environ.get("TQKV_EXACT", "256")), options["engine"]["max_num_seqs"])
        reference, apart = Reference(folder, os.environ["TQKV_VLLM"], getattr(torch, dtype), options.get("native", []), requests, sinks), []
        written = collections.defaultdict(list)
        for step in record.steps:
            want = reference.logits(step)
            apart += ((step["logits"] - want).abs().amax(1) / want.abs().max()).tolist()
            for name, length, known, row in zip(step["requests"], step["seq_lens"].tolist(), step["known"], want):
                if length >= known:
                    written[number(name)].append(row)
        result |= {"apart": sorted(apart), "counts": record.counts | reference.tokens}
        result |= {"reference": [[[row.argmax().item() for row in written[request]]] for request in range(len(outputs))]}
        # Bytes from one block of the kernels to the next, of each layer, and tokens of a block of the scheduler.
        result |= {"strides": [cache.stride(0) * cache.element_size() for cache in record.runner.kv_caches]}
        result |= {"block": engine.llm_engine.vllm_config.cache_config.block_size}
    if answers:
        replayed = {request: torch.stack(written[request]) for request in answers.logits} if replay else {}
        torch.save([{request: torch.stack(rows) for request, rows in answers.logits.items()}, replayed], options["logits"])
    print("RESULT", json.dumps(result), flush=True)
    if options.get("stays"):
        sys.stdin.read()
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
