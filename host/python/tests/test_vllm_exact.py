"""Which tokens of a request are exact in vLLM: a random engine of blocks, whose tokens are numbers, against what each request ought to see."""

import random

import pytest

torch = pytest.importorskip("torch")

from tqkv.vllm_exact import COLUMNS, LOWEST, UNIT, ExactRows, Units, requests

BLOCK = 64


class Engine:
    """Requests with prompts that may begin alike, blocks that are shared and given to others, and the number of each token by its slot."""

    def __init__(self, seed, rows, window):
        self.random, self.window = random.Random(seed), window
        self.units, self.rows = Units(rows, 8, 600, BLOCK, torch.device("cpu")), ExactRows(rows, torch.zeros(1, 1, 1))
        self.free, self.requests, self.held = list(range(40)), [], {}
        self.last = 0

    def join(self, prompt):
        """A request whose first full blocks may be those of another one."""
        table, computed = [], 0
        if self.requests and self.random.random() < 0.6:
            other = self.random.choice(self.requests)
            shared = self.random.randrange(0, other["computed"] // BLOCK + 1)
            table, computed = other["table"][:shared], shared * BLOCK
        self.requests.append({"table": table, "computed": computed, "length": computed + prompt, "alone": not table})

    def step(self):
        """Some requests go on, those of one token first, and return as `(table, computed, length)`."""
        for request in [r for r in self.requests if self.random.random() < 0.05]:
            self.requests.remove(request)
        used = {block for request in self.requests for block in request["table"]}
        self.free = [block for block in range(40) if block not in used]
        self.random.shuffle(self.free)
        if len(self.requests) < 8 and self.random.random() < 0.5:
            self.join(self.random.randrange(1, 200))
        now = []
        for request in self.requests:
            tokens = min(max(request["length"] - request["computed"], 1), self.random.choice([1, 40, 100]))
            blocks = -(-(request["computed"] + tokens) // BLOCK)
            if blocks - len(request["table"]) > len(self.free):
                continue
            request["table"] = request["table"] + [self.free.pop() for _ in range(blocks - len(request["table"]))]
            now.append((request["table"], request["computed"], request["computed"] + tokens, request["alone"]))
            request["computed"] += tokens
        return sorted(now, key=lambda of: of[2] - of[1] > 1)

    def run(self):
        now = self.step()
        if not now:
            return None
        slots = [table[at // BLOCK] * BLOCK + at % BLOCK for table, computed, length, _ in now for at in range(computed, length)]
        for slot in slots:
            self.last += 1
            self.held[slot] = self.last
        table = torch.zeros(len(now), 40, dtype=torch.int32)
        for row, (blocks, *_) in enumerate(now):
            table[row, : len(blocks)] = torch.tensor(blocks)
        lengths = torch.tensor([length for _, _, length, _ in now], dtype=torch.int32)
        decodes = sum(length - computed == 1 for _, computed, length, _ in now)
        self.units.begin(torch.tensor([*slots, -1, -1]), table, lengths, decodes, self.window)
        tokens = torch.tensor([float(self.held[slot]) for slot in slots] + [torch.nan] * 2).view(-1, 1, 1)
        self.rows.keep(tokens, -tokens, self.units.seen.kept)
        return now, table, decodes

    def number(self, table, at):
        return self.held[table[at // BLOCK] * BLOCK + at % BLOCK]


@pytest.mark.parametrize(("rows", "window"), [(40, None), (9, None), (3, None), (40, 100), (9, 5)])
def test_a_request_sees_its_own_tokens_exactly_and_all_others_as_codes(rows, window):
    exact = complete = 0
    for seed in range(12):
        engine = Engine(seed, rows, window)
        for _ in range(60):
            ran = engine.run()
            if ran is None:
                continue
            now, table, decodes = ran
            seen = engine.units.seen
            keys, values = (engine.rows.of(seen.places, side)[0, :, :, 0] for side in range(2))
            for row, (blocks, _, length, alone) in enumerate(now[:decodes]):
                shown = seen.bias[row] == 0
                assert bool((seen.bias[row] == LOWEST).logical_or(shown).all())
                assert bool((keys[row][~shown] == 0).all()), "what is not seen is zero, so it has no NaN"
                codes = range(int(seen.starts[row]), int(seen.ends[row]))
                oldest = max(length - (window or length), 0)
                rest = [engine.number(blocks, at) for at in range(oldest, length) if at not in codes]
                assert codes.start >= oldest and all(at < length for at in codes)
                assert sorted(keys[row][shown].tolist()) == sorted(rest), (length, codes)
                assert values[row].tolist() == (-keys[row]).tolist()
                newest = (length - 1) // UNIT * UNIT
                is_complete = len(codes) == max(newest - UNIT - max(UNIT, oldest), 0)
                assert is_complete or not alone or rows < 40, "there is room for all, but for what others have computed"
                exact, complete = exact + bool(rest), complete + is_complete
            # Prompts see what is left of earlier steps.
            before = torch.tensor([computed for _, computed, _, _ in now[decodes:]], dtype=torch.long)
            places, tokens = engine.units.earlier(table[decodes:], before)
            held = engine.rows.of(places, 0)[0, :, :, 0]
            for row, (blocks, computed, *_) in enumerate(now[decodes:]):
                for number, at in zip(held[row].tolist(), tokens[row].tolist()):
                    assert at < computed
                    assert number == (engine.number(blocks, at) if at >= 0 else 0)
    assert exact > 500 and complete > (500 if rows == 40 else 20)


def test_units_of_short_requests():
    table = torch.tensor([[5, 7]], dtype=torch.int32)
    for length, units in [(1, [20]), (16, [20]), (17, [20, 21]), (32, [20, 21]), (33, [20, 21, 22]), (80, [20, 23, 28])]:
        got, tokens = Units(3, 1, 1, BLOCK, torch.device("cpu")).wanted(table, torch.tensor([length]))
        assert [unit for unit in got[0].tolist() if unit >= 0] == units, length
        assert tokens.shape == (1, 3) and COLUMNS == 3 * UNIT


def test_requests_with_rows_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("TQKV_EXACT", raising=False)
    assert (requests(8), requests(1024)) == (8, 256)
    monkeypatch.setenv("TQKV_EXACT", "0")
    assert requests(8) == 0
    monkeypatch.setenv("TQKV_EXACT", "500")
    assert requests(1024) == 500
    from tqkv import TqkvError

    for wrong in ("-1", "many", "1.5"):
        monkeypatch.setenv("TQKV_EXACT", wrong)
        with pytest.raises(TqkvError, match="expected a number of requests"):
            requests(8)
