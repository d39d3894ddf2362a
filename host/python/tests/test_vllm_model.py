"""vLLM's engine on codes with a model that others trained, on a CPU: what it writes, and how far its logits are from those of its own cache.

TQKV_HF_MODEL names a folder of Transformers with a Llama whose text is English: SmolLM2-135M, for which the bounds were measured. See
`tests/reference/hf_of_gguf.py`.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from itertools import chain
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed")

from conftest import ROOT
from test_vllm_attention import generated

MODEL = os.environ.get("TQKV_HF_MODEL")
TEXT = ROOT / "host" / "model" / "shipped" / "heldout.txt"

if not MODEL or not TEXT.exists():
    pytest.skip("TQKV_HF_MODEL names no folder of a model, or this is not the tree of the repository", allow_module_level=True)

PASSAGE, ASKED, COPIES = 56, 16, 5
"""Tokens of a passage that comes again, those of it that are the question, and how many requests have one."""


def copied(text, gap, number):
    """A passage, running text, and the beginning of the passage again. Returns also the rest of it."""
    passage, running = text[300 * number :][:PASSAGE], text[4000 + 200 * number :][: 240 + 17 * number]
    return [*passage, *gap, *running, *gap, *passage[:ASKED]], passage[ASKED:]


@pytest.fixture(scope="module")
def given():
    """Requests, of which the first ones are told what to write, and the others go on with texts that begin alike."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(MODEL) / "tokenizer.json"))
    text, gap = (tokenizer.encode(of, add_special_tokens=False).ids for of in (TEXT.read_text(encoding="utf-8")[:60_000], "\n\n"))
    prompts, answers = zip(*(copied(text, gap, number) for number in range(COPIES)))
    prompts += tuple(text[6000:6150] + text[7000 + 50 * i :][: 3 + 7 * i] for i in range(16 - COPIES))
    answers += (None,) * (16 - COPIES)
    return [[tokens, {"temperature": 0, "max_tokens": len(answer or range(16))}] for tokens, answer in zip(prompts, answers)], answers


def engine(kv, given, folder):
    """What an engine wrote, and the logarithms of the probabilities of tokens of the answers, of the engine and of the replay."""
    requests, answers = given
    sizes = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 44, "max_model_len": 1024}
    got = generated(None, MODEL, kv, requests, sizes, exact="16", answers=answers, logits=str(folder / "logits"))
    return got, *(torch.cat([of[i] for i in range(COPIES)]).log_softmax(-1) if of else None for of in torch.load(folder / "logits"))


@pytest.fixture(scope="module")
def own(given, tmp_path_factory):
    """The engine with its own cache, in float32."""
    return engine("", given, tmp_path_factory.mktemp("own"))


def divergence(of, other):
    """The mean KL divergence of logarithms of probabilities `[tokens, vocabulary]`."""
    return torch.nn.functional.kl_div(other, of, log_target=True, reduction="batchmean").item()


@pytest.mark.parametrize(("kv", "most"), [("s4", 0.02), ("t4,t2", 0.025)])
def test_a_real_model_diverges_as_its_codes_do(given, own, tmp_path, kv, most):
    """Sixteen requests at a time: prompts that are cut, a shared prefix, and fewer blocks than they want."""
    got, engines, replayed = engine(kv, given, tmp_path)
    _, exact, _ = own
    assert len(engines) == COPIES * (PASSAGE - ASKED) == len(exact)
    of_codes, of_kernels = divergence(exact, engines), divergence(replayed, engines)
    print(f"\n{kv}: KL to its own cache {of_codes:.4f}, of the replay {divergence(exact, replayed):.4f}, between both {of_kernels:.2g}")
    assert 0.002 < of_codes < most
    # The kernels have queries and weights of 8 bits.
    assert of_kernels < of_codes / 20 and abs(divergence(exact, replayed) / of_codes - 1) < 0.15
    tokens, reference = (list(chain(*(one for [one] in got[of][COPIES:]))) for of in ("tokens", "reference"))
    assert sum(a == b for a, b in zip(tokens, reference, strict=True)) >= 0.97 * len(tokens), (tokens, reference)
    assert max(got["cached"]) == 128
    for what in ("preempted", "prompts after codes", "parts of prompts", "mixed steps", "steps with shared blocks", "exact of a decoded token"):
        assert got["counts"].get(what, 0) > 0, got["counts"]


def completion(port, prompt):
    """The text that a server writes after a prompt. None while it does not listen yet."""
    body = json.dumps({"model": "served", "prompt": prompt, "max_tokens": 8, "temperature": 0}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.load(answer)["choices"][0]["text"]
    except urllib.error.URLError as error:
        if isinstance(error, urllib.error.HTTPError):
            raise
        return None


def test_the_server_of_the_documents_answers_on_codes(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, "--served-model-name", "served"]
    command += ["--port", str(port), "--max-model-len", "2048", "--enforce-eager"]
    env = os.environ | {"TQKV_VLLM": "s4,t4", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
    log = tmp_path / "log"
    with log.open("w") as out, subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT) as server:
        try:
            text, until = None, time.monotonic() + 300
            while text is None and server.poll() is None and time.monotonic() < until:
                time.sleep(1)
                text = completion(port, "The capital of France is")
        finally:
            server.terminate()
    said = log.read_text()
    assert text is not None and "Paris" in text, said
    [tokens] = re.findall(r"KV cache size: ([\d,]+) tokens", said)
    # A GiB has 46,603 tokens of this model in 16 bits.
    assert int(tokens.replace(",", "")) > 3.7 * 46_603, tokens
