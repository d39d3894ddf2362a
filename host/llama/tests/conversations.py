"""Conversations in turns through one slot of llama-server, whose prompt cache (`--cache-ram`) keeps those that wait.

Run: python3 conversations.py CONVERSATIONS TOKENS TEXT MODEL.gguf LLAMA-SERVER [ARGUMENT ..]

Each conversation begins with about TOKENS tokens of TEXT. In a second round each goes on by one question. The report has
the tokens that were computed and the resident memory after each round, and how many of the answers' tokens are those of
prompts that are computed as a whole, which COMPARE=0 in the environment leaves out. TYPE is the declared type of keys and
values. STOCK=1 leaves the library out. The exit status is 1 if the second round computes a prompt again.
"""

import os
import sys
import tempfile

from server import post, resident, server

ANSWER = 24


def tokens_of(base, text):
    return post(base, "/tokenize", {"content": text})["tokens"]


def ask(base, prompt, cached=True):
    body = {"prompt": prompt, "n_predict": ANSWER, "temperature": 0, "cache_prompt": cached, "return_tokens": True, "ignore_eos": True}
    return post(base, "/completion", body)


def same(a, b):
    """Number of first tokens that are equal."""
    return next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def main(conversations, tokens, path, model, *program):
    count, length, kind = int(conversations), int(tokens), os.environ.get("TYPE", "f16")
    is_stock = os.environ.get("STOCK") == "1"
    env = {name: value for name, value in os.environ.items() if not (is_stock and name == "GGML_BACKEND_PATH")}
    arguments = ["-np", "1", "-c", str(length + 512), "-b", "512", "-ctk", kind, "-ctv", kind, "--cache-ram", "65536", "-fit", "off"]
    with tempfile.TemporaryDirectory() as folder, server(program, model, folder, "kept", *arguments, env=env) as (base, process):
        text = tokens_of(base, open(path, encoding="utf-8").read())
        text = text * (1 + (length + 40 * count) // len(text))
        question = tokens_of(base, "\n\nQuestion: what does the text say about this? Answer:")
        prompts, answers = [], []
        print(f"{kind}: resident {resident(process):.1f} MiB before the first request", flush=True)
        for number in range(count):
            # Another start makes every conversation different from its first token on.
            prompt = tokens_of(base, f"Conversation {number}. ") + text[40 * number:][: length - 40]
            answer = ask(base, prompt)
            prompts.append(prompt + answer["tokens"] + question)
        first = resident(process)
        print(f"{kind}: resident {first:.1f} MiB after {count} conversations of {length} tokens", flush=True)
        computed = []
        for prompt in prompts:
            answer = ask(base, prompt)
            answers.append(answer["tokens"])
            computed.append(answer["timings"]["prompt_n"])
        print(f"{kind}: resident {resident(process):.1f} MiB after a second round, which computed {computed} tokens of each prompt", flush=True)
        if os.environ.get("COMPARE") != "0":
            equal = [same(answer, ask(base, prompt, cached=False)["tokens"]) for answer, prompt in zip(answers, prompts)]
            print(f"{kind}: of {ANSWER} tokens, {equal} are those of prompts that are computed as a whole")
        return int(max(computed) > 200)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
