"""Random requests to two llama-servers: a busy one with long life, and a fresh one to compare with.

Run: python3 server.py URL FRESH_URL SECONDS PID [SEED]

The busy server needs `-np 4 --context-shift --slot-save-path DIR`. The fresh one may be a second server, whose
prompts are never cached. PID is that of the busy server, for its resident memory. The report has one line per
minute. The server's own prompt cache counts as resident; `--cache-ram 0` turns it off. The exit status is 1 if a
request fails, or if the mean difference of log-probabilities exceeds 0.5.
"""

import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request

WORDS = "the of river stone light a walks under seven green birds and then slowly opens every old door".split()
SLOTS = 4
TOP = 10


def post(base, path, body, cancel_after=None):
    """The answer as JSON, or None after it was cancelled."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
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


class Soak:
    def __init__(self, busy, fresh, seconds, pid, seed):
        self.busy, self.fresh, self.pid, self.seed = busy, fresh, pid, seed
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.counts, self.failures, self.differences = {}, [], []
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
        what = draw.choice(["short", "shared", "shared", "cancel", "long", "shift", "save", "restore", "compare"])
        prompt = draw.choice(self.shared) + " " + text(draw, draw.randrange(1, 60))
        body = {"prompt": prompt, "n_predict": draw.randrange(1, 40), "id_slot": slot, "cache_prompt": True}
        name = {"filename": f"slot{slot}.bin"}
        if what == "compare":
            self.compare(prompt)
        elif what == "cancel":
            post(self.busy, "/completion", {**body, "n_predict": 200, "stream": True}, draw.randrange(1, 30))
        elif what == "save":
            post(self.busy, f"/slots/{slot}?action=save", name)
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
                with self.lock:
                    self.failures.append(repr(error))
                time.sleep(1)

    def report(self):
        made, found = sum(self.counts.values()), self.differences
        mean, worst = (sum(found) / len(found), max(found)) if found else (0.0, 0.0)
        print(f"resident {resident(self.pid):.1f} MiB, {made} requests, {len(self.failures)} failed, "
              f"{len(found)} compared: mean {mean:.4f}, worst {worst:.4f}", flush=True)
        return mean

    def run(self):
        threads = [threading.Thread(target=self.worker, args=(slot,)) for slot in range(SLOTS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            pause = time.monotonic() + 60
            for thread in threads:
                thread.join(max(0.0, min(pause, self.end + 300) - time.monotonic()))
            self.report()
        print(self.counts, self.failures[:5])
        return 1 if self.failures or not self.differences or self.report() > 0.5 else 0


if __name__ == "__main__":
    urls, numbers = sys.argv[1:3], [int(number) for number in sys.argv[3:]]
    sys.exit(Soak(*urls, numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 1).run())
