"""All that a chat server does at once, with the library and a declared q4_0 and with a stock f16, and how far texts agree.

Run: python3 everything.py SECONDS SEED MODEL.gguf LLAMA-SERVER [ARGUMENT ..]

Both servers have four slots, shifts of positions, a prompt cache, and the model as its own draft model. Four clients send
the same greedy requests to both: chats that go on after others, long texts that shift, answers in a grammar, and saved
slots that are restored; and cancelled ones to the first. The report has, by kind, the share of first tokens that are
equal in both, and the resident memory at the end. The exit status is 1 if a request fails, if fewer than LEAST of the
tokens are equal, if an answer breaks its grammar, or if the server with the library takes more memory than the other.
"""

import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time

from server import SLOTS, SLOT_TOKENS, post, resident, server, text

ANSWER = 24
# Share of tokens before the first difference. Weights of 4 bits have near ties, at which texts part for good.
LEAST = 0.5
# MiB of prompts that each server keeps.
KEPT = 256
GRAMMAR = 'root ::= "{\\"name\\": \\"" [a-z]{1,12} "\\", \\"age\\": " [1-9] [0-9]? "}"'


class Everything:
    def __init__(self, bases, seconds, seed):
        self.bases, self.seed, self.end = bases, seed, time.monotonic() + seconds
        self.lock = threading.Lock()
        self.equal, self.failures, self.cancelled = {}, [], 0
        self.drafted, self.computed, self.kept = [0, 0], 0, 0

    def both(self, kind, body):
        """Sends a request to both servers. Returns the texts."""
        body = {"n_predict": ANSWER, "temperature": 0, "return_tokens": True, "cache_prompt": True, **body}
        answers = [post(base, "/completion", body) for base in self.bases]
        ours, theirs = (answer["tokens"] for answer in answers)
        length = max(len(ours), len(theirs))
        first = next((at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
        timings = answers[0]["timings"]
        with self.lock:
            equal, all_of = self.equal.get(kind, (0, 0))
            self.equal[kind] = equal + first, all_of + length
            self.drafted[0] += timings.get("draft_n_accepted", 0)
            self.drafted[1] += timings.get("draft_n", 0)
            self.computed += timings["prompt_n"]
            self.kept += timings.get("cache_n", 0)
        return [answer["content"] for answer in answers]

    def request(self, draw, chats, slot):
        kind = draw.choice(["chat", "chat", "chat", "grammar", "long", "restored", "cancel"])
        if kind == "chat":
            # Each of several chats goes on where it was, with the answers of the stock server.
            chat = draw.randrange(len(chats))
            chats[chat] += " " + text(draw, draw.randrange(4, 30))
            answer = self.both(kind, {"prompt": chats[chat]})[1]
            chats[chat] += answer if len(chats[chat]) < 3000 else ""
            if len(chats[chat]) >= 3000:
                chats[chat] = text(draw, 60)
        elif kind == "grammar":
            prompt = draw.choice(chats) + " A person of the story as JSON: "
            for answer in self.both(kind, {"prompt": prompt, "grammar": GRAMMAR, "n_predict": 48}):
                person = json.loads(answer)
                assert person["name"].islower() and 1 <= person["age"] <= 99, answer
        elif kind == "long":
            # The answer does not fit into the slot after the prompt, so that positions shift.
            self.both(kind, {"prompt": text(draw, SLOT_TOKENS * 3 // 4), "n_predict": SLOT_TOKENS // 2, "ignore_eos": True})
        elif kind == "restored":
            prompt, name = draw.choice(chats), {"filename": f"slot{slot}.bin"}
            for base, folder in zip(self.bases, ("ours", "theirs")):
                post(base, "/completion", {"prompt": prompt, "n_predict": 1, "id_slot": slot})
                state = {"filename": f"{folder}-{name['filename']}"}
                post(base, f"/slots/{slot}?action=save", state)
                post(base, f"/slots/{slot}?action=erase", state)
                post(base, f"/slots/{slot}?action=restore", state)
            self.both(kind, {"prompt": prompt + " " + text(draw, 4), "id_slot": slot})
        else:
            post(self.bases[0], "/completion", {"prompt": draw.choice(chats), "n_predict": 200, "stream": True}, draw.randrange(1, 20))
            with self.lock:
                self.cancelled += 1

    def worker(self, slot):
        draw = random.Random(self.seed * 100 + slot)
        chats = [text(draw, draw.randrange(40, 200)) for _ in range(3)]
        while time.monotonic() < self.end:
            try:
                self.request(draw, chats, slot)
            except Exception as error:
                print(f"failed: {error!r}", flush=True)
                with self.lock:
                    self.failures.append(repr(error))
                time.sleep(1)

    def run(self):
        threads = [threading.Thread(target=self.worker, args=(slot,)) for slot in range(SLOTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main(seconds, seed, model, *program):
    shared = ["-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "--context-shift", "--cache-ram", str(KEPT), "-md", model]
    shared += ["--spec-type", "draft-simple", "--spec-draft-n-max", "4", "-ngld", "99", "-fit", "off"]
    declared = ["-ctk", "q4_0", "-ctv", "q4_0", "-ctkd", "q8_0", "-ctvd", "q8_0"]
    stock = {name: value for name, value in os.environ.items() if name != "GGML_BACKEND_PATH"}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        ours, own_pid = servers.enter_context(server(program, model, folder, "ours", *shared, *declared))
        theirs, their_pid = servers.enter_context(server(program, model, folder, "theirs", *shared, env=stock))
        everything = Everything((ours, theirs), int(seconds), int(seed))
        everything.run()
        memory = [resident(pid) for pid in (own_pid, their_pid)]
        total = [sum(part) for part in zip(*everything.equal.values())] or [0, 1]
        for kind, (equal, all_of) in sorted(everything.equal.items()):
            print(f"{kind}: {equal} of {all_of} tokens are equal ({equal / max(all_of, 1):.1%})")
        share = total[0] / max(total[1], 1)
        accepted, drafted = everything.drafted
        print(f"all: {share:.1%} of {total[1]} tokens; {len(everything.failures)} failed, {everything.cancelled} cancelled; "
              f"{everything.kept} tokens of prompts were kept, {everything.computed} computed; {accepted} of {drafted} drafted tokens accepted")
        print(f"resident: {memory[0]:.1f} MiB, stock f16 {memory[1]:.1f} MiB")
        return int(bool(everything.failures) or share < LEAST or memory[0] > memory[1] or drafted == 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
