"""Random requests to two llama-servers: a busy one with long life, and one whose prompts are never cached.

Run: python3 server.py SECONDS SEED MODEL.gguf LLAMA-SERVER [ARGUMENT ..]

It starts both servers with the same environment and arguments, and compares predictions of the busy one with those
of the other. The report has one line per minute. The exit status is 1 if a request fails, if a difference of
log-probabilities is too large, or if the busy server's memory grows: after its cache has been filled, or in the
last quarter of the time, when everything that a server allocates once is there. `.ci/full llama_soak` is an hour of it.
"""

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

WORDS = "the of river stone light a walks under seven green birds and then slowly opens every old door".split()
SLOTS = 4
# Tokens of a slot, which is also the length of the context of a sequence.
SLOT_TOKENS = 1024
TOP = 10
# Largest differences of log-probabilities. A stock server in f16 has none. With codes they are about 0.2, because the
# busy server reads codes where the other one computes the prompt from exact rows.
MEAN, WORST = 0.4, 1.5
# Seconds that a request may take. A server without an answer would not end.
PATIENCE = 3600
# MiB that the busy server may take after its cache has been filled, and in the last quarter of a run of at least LONG seconds.
GROWTH, LATE_GROWTH, LONG = 16, 4, 600


def post(base, path, body, cancel_after=None):
    """The answer as JSON, or None after it was cancelled."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        if cancel_after is None:
            return json.load(answer)
        for _ in range(cancel_after):
            if not answer.readline():
                break
        return None


def resident(pid):
    """Resident memory in MiB."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


def text(draw, count):
    return " ".join(draw.choice(WORDS) for _ in range(count))


@contextlib.contextmanager
def server(program, model, folder, name, *arguments, env=None):
    """URL and process of a server that has loaded its model. It has these arguments, or those of the random requests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*program, "-m", model, "-ngl", "99", "-fa", "on", "--slot-save-path", folder, "--no-ui", "--port", str(port)]
    command += arguments or ["-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "--context-shift", "--cache-ram", "0"]
    with open(f"{folder}/{name}.log", "w+") as log:
        process = subprocess.Popen([*command, "-t", "1", "-tb", "1"], stdout=log, stderr=subprocess.STDOUT, env=env)
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(url + "/health", timeout=5)
                    break
                if process.poll() is not None:
                    break
                time.sleep(0.2)
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            log.seek(0)
            print(*[line for line in log if line.startswith("tqkv")], sep="", end="")


class Soak:
    def __init__(self, busy, fresh, seconds, pid, seed):
        self.busy, self.fresh, self.pid, self.seed, self.seconds = busy, fresh, pid, seed, seconds
        self.lock = threading.Lock()
        self.counts, self.failures, self.differences, self.memory = {}, [], [], []
        self.shared = [text(random.Random(seed + i), 200) for i in range(3)]

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def compare(self, prompt):
        """Differences of the most likely next tokens' log-probabilities between both servers."""
        body = {"prompt": prompt, "n_predict": 1, "n_probs": TOP, "temperature": 0}
        tops = []
        for base, cache in ((self.busy, True), (self.fresh, False)):
            answer = post(base, "/completion", {**body, "cache_prompt": cache})
            first = answer["completion_probabilities"][0]["top_logprobs"]
            tops.append({entry["id"]: entry["logprob"] for entry in first})
        both = tops[0].keys() & tops[1].keys()
        with self.lock:
            self.differences.append(max((abs(tops[0][i] - tops[1][i]) for i in both), default=float("inf")))

    def request(self, draw, slot):
        kinds = ["short", "shared", "shared", "cancel", "long", "shift", "save", "restore", "erase", "compare"]
        what = draw.choice(kinds)
        prompt = draw.choice(self.shared) + " " + text(draw, draw.randrange(1, 60))
        body = {"prompt": prompt, "n_predict": draw.randrange(1, 40), "id_slot": slot, "cache_prompt": True}
        name = {"filename": f"slot{slot}.bin"}
        if what == "compare":
            self.compare(prompt)
        elif what == "cancel":
            post(self.busy, "/completion", {**body, "n_predict": 200, "stream": True}, draw.randrange(1, 30))
        elif what in ("save", "erase"):
            post(self.busy, f"/slots/{slot}?action={what}", name)
        elif what == "restore":
            try:
                post(self.busy, f"/slots/{slot}?action=restore", name)
            except urllib.error.HTTPError as error:
                # Nothing is saved before the first save.
                if error.code not in (400, 404):
                    raise
                what = "restore of nothing"
        else:
            if what == "short":
                body["prompt"] = text(draw, draw.randrange(1, 20))
            if what == "long":
                body["prompt"] = prompt + text(draw, 500)
            if what == "shift":
                # Longer than one slot's context together with the prompt.
                body.update(prompt=prompt + text(draw, 600), n_predict=400, ignore_eos=True)
            post(self.busy, "/completion", body)
        self.count(what)

    def worker(self, slot):
        draw = random.Random(self.seed * 100 + slot)
        while time.monotonic() < self.end:
            try:
                self.request(draw, slot)
            except Exception as error:
                print(f"failed: {error!r}", flush=True)
                with self.lock:
                    self.failures.append(repr(error))
                time.sleep(1)

    def fill(self):
        """Fills the cache of every slot. Returns the resident memory after that."""
        for slot in range(SLOTS):
            prompt = text(random.Random(self.seed + 10 + slot), SLOT_TOKENS * 3 // 4)
            post(self.busy, "/completion", {"prompt": prompt, "n_predict": 8, "id_slot": slot})
        return resident(self.pid)

    def report(self):
        made, found = sum(self.counts.values()), self.differences
        mean, worst = (sum(found) / len(found), max(found)) if found else (0.0, 0.0)
        now = resident(self.pid)
        self.memory.append((time.monotonic(), now))
        print(f"resident {now:.1f} MiB, {made} requests, {len(self.failures)} failed, "
              f"{len(found)} compared: mean {mean:.4f}, worst {worst:.4f}", flush=True)
        return now, mean, worst

    def late_growth(self):
        """MiB by which the most of the last quarter exceeds the most of the quarter before it; 0 in a short run."""
        part = lambda a, b: [now for at, now in self.memory if a <= 1 - (self.end - at) / self.seconds <= b]
        before, last = part(0.5, 0.75), part(0.75, 2)
        return max(last) - max(before) if self.seconds >= LONG and before and last else 0.0

    def run(self):
        filled = self.fill()
        print(f"resident {filled:.1f} MiB with a full cache", flush=True)
        self.end = time.monotonic() + self.seconds
        threads = [threading.Thread(target=self.worker, args=(slot,)) for slot in range(SLOTS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            pause = time.monotonic() + 60
            for thread in threads:
                thread.join(max(0.0, pause - time.monotonic()))
            self.report()
        for prefix in self.shared:
            self.compare(prefix + " " + text(random.Random(self.seed), 20))
        now, mean, worst = self.report()
        late = self.late_growth()
        print(self.counts, self.failures[:5], f"{now - filled:.1f} MiB more than filled, {late:.1f} in the last quarter")
        grown = now > filled + GROWTH or late > LATE_GROWTH
        return 1 if self.failures or mean > MEAN or worst > WORST or grown else 0


def main(seconds, seed, model, *program):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        busy, pid = servers.enter_context(server(program, model, folder, "busy"))
        fresh, _ = servers.enter_context(server(program, model, folder, "fresh"))
        return Soak(busy, fresh, int(seconds), pid, int(seed)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
