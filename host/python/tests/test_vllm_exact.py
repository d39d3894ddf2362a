"""Which tokens of a request are exact in vLLM: a random engine of blocks, whose tokens are numbers, against what each request ought to see."""

import random

import pytest

torch = pytest.importorskip("torch")

from tqkv.vllm_exact import UNIT, Rows, Units, Window, requests

BLOCK = 64
USUAL = Window.of(16, 16)


class Engine:
    """Requests with prompts that may begin alike, blocks that are shared and given to others, and the number of each token by its slot. As in
    vLLM, a request may share a block that another one fills in the same step, and one of a request that has left."""

    def __init__(self, seed, rows, window, exact=USUAL):
        self.random, self.window = random.Random(seed), window
        self.units, self.rows = Units(exact, rows, 8, 600, BLOCK, torch.device("cpu"), (window, 7)), Rows(rows, torch.zeros(1, 1, 1))
        self.free, self.requests, self.gone, self.held = [], [], [], {}
        self.last = 0

    def join(self, other, leaves):
        """A request whose first full blocks may be those of another one, and how soon it leaves."""
        table = []
        if other is not None:
            most = min(other["computed"] // BLOCK, len(other["table"]))
            table = other["table"][: self.random.choice([most, self.random.randrange(most + 1)])]
            self.free = [block for block in self.free if block not in table]
        computed = len(table) * BLOCK
        length = computed + self.random.randrange(1, 200)
        self.requests.append({"table": table, "computed": computed, "length": length, "alone": not table, "leaves": leaves})

    def go_on(self, request):
        """The next tokens of a request, `(table, computed, length, alone)`, if there are blocks for them."""
        tokens = min(max(request["length"] - request["computed"], 1), self.random.choice([1, 40, 100, 200]))
        blocks = -(-(request["computed"] + tokens) // BLOCK)
        if blocks - len(request["table"]) > len(self.free):
            return []
        request["table"] = request["table"] + [self.give() for _ in range(blocks - len(request["table"]))]
        request["computed"] += tokens
        return [(request["table"], request["computed"] - tokens, request["computed"], request["alone"])]

    def give(self):
        """A block, which nobody can share any longer."""
        block = self.free.pop()
        for request in self.gone:
            if block in request["table"]:
                request["table"] = request["table"][: request["table"].index(block)]
        return block

    def step(self):
        """Some requests go on, and others join one after the other. Those of one token come first."""
        for request in [r for r in self.requests if self.random.random() < r["leaves"]]:
            self.requests.remove(request)
            self.gone.append(request)
        used = {block for request in self.requests for block in request["table"]}
        self.free = [block for block in range(40) if block not in used]
        self.random.shuffle(self.free)
        now = [of for request in self.requests for of in self.go_on(request)]
        known, leaves = self.requests + self.gone, self.random.choice([0.05, 0.9])
        other = self.random.choice(known) if known and self.random.random() < 0.6 else None
        for _ in range(min(self.random.choice([0, 0, 1, 1, 4]), 8 - len(self.requests))):
            self.join(other, leaves)
            other = self.requests[-1]
            now += self.go_on(other)
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
        queries = torch.tensor([length - computed for _, computed, length, _ in now], dtype=torch.int32)
        self.units.begin(torch.tensor([*slots, -1, -1]), queries, table, lengths, decodes)
        tokens = torch.tensor([float(self.held[slot]) for slot in slots] + [torch.nan] * 2).view(-1, 1, 1)
        self.rows.keep(tokens, -tokens, self.units.kept)
        return now, table, decodes

    def number(self, table, at):
        return self.held[table[at // BLOCK] * BLOCK + at % BLOCK]


@pytest.mark.parametrize(
    ("rows", "window", "sinks", "hot"),
    [(40, None, 16, 16), (24, None, 4, 1), (9, None, 16, 16), (3, None, 16, 16), (40, 100, 16, 16), (9, 5, 16, 16)]
    + [(80, None, 4, 64), (80, 100, 40, 33), (20, None, 64, 64), (40, None, 0, 16), (40, None, 20, 0), (9, None, 0, 40)],
)
def test_a_request_sees_its_own_tokens_exactly_and_all_others_as_codes(rows, window, sinks, hot):
    policy, is_enough = Window.of(sinks, hot), rows >= 40
    exact = complete = 0
    for seed in range(20):
        engine = Engine(seed, rows, window, policy)
        for _ in range(60):
            ran = engine.run()
            if ran is None:
                continue
            now, table, decodes = ran
            seen = engine.units.seen[window]
            keys, values = (engine.rows.of(seen.places, side)[0, :, :, 0] for side in range(2))
            for row, (blocks, _, length, alone) in enumerate(now[:decodes]):
                shown = seen.places[row] < engine.rows.places
                assert bool((seen.places[row][~shown] == engine.units.zero).all())
                assert bool((keys[row][~shown] == 0).all()), "what is not seen is zero, so it has no NaN"
                codes = range(int(seen.starts[row]), int(seen.ends[row]))
                oldest = max(length - (window or length), 0)
                rest = [engine.number(blocks, at) for at in range(oldest, length) if at not in codes]
                assert codes.start >= oldest and all(at < length for at in codes)
                assert sorted(keys[row][shown].tolist()) == sorted(rest), (length, codes)
                assert values[row].tolist() == (-keys[row]).tolist()
                newest = (length - 1) // UNIT * UNIT + UNIT - policy.newest * UNIT if hot else length
                is_complete = len(codes) == max(newest - max(policy.first * UNIT, oldest), 0)
                assert is_complete or not alone or not is_enough, "there is room for all, but for what others have computed"
                exact, complete = exact + bool(rest), complete + is_complete
            # Prompts see what is left of earlier steps.
            before = torch.tensor([computed for _, computed, _, _ in now[decodes:]], dtype=torch.int32)
            places, tokens = engine.units.earlier(table[decodes:], before)
            held = engine.rows.of(places, 0)[0, :, :, 0]
            for row, (blocks, computed, *_) in enumerate(now[decodes:]):
                for number, at in zip(held[row].tolist(), tokens[row].tolist()):
                    assert at < computed
                    assert number == (engine.number(blocks, at) if at >= 0 else 0)
    assert exact > 500 and complete > (500 if is_enough else 20)


def test_a_unit_of_several_requests_has_one_row():
    """Two requests of a step with the same first block, a step of one that wants all rows but one, and a third request with that block. The
    rows of the first step are as old as each other, so one of two rows for a unit would be left, and nothing was written there."""
    units, rows = Units(USUAL, 9, 8, 600, BLOCK, torch.device("cpu")), Rows(9, torch.zeros(1, 1, 1))

    def begin(slots, *requests):
        table, lengths, queries = (torch.tensor(of, dtype=torch.int32) for of in zip(*requests))
        units.begin(torch.tensor(slots), queries, table, lengths, 0)
        tokens = torch.tensor(slots, dtype=torch.float32).view(-1, 1, 1)
        rows.keep(tokens, tokens, units.kept)

    block = list(range(BLOCK, 2 * BLOCK))
    begin([*block, *range(128, 136), *range(192, 200)], ([1, 2], 72, 72), ([1, 3], 72, 8))
    owners = units.owner.tolist()
    assert sorted(owner for owner in owners if owner >= 0) == [4, 7, 8, 12], owners
    for other in range(10, 16):
        begin([other * BLOCK + i for i in range(40)], ([other, 0], 40, 40))
        places, tokens = units.earlier(*(torch.tensor(of, dtype=torch.int32) for of in ([[1, 4]], [BLOCK])))
        for number, at in zip(rows.of(places, 0)[0, 0, :, 0].tolist(), tokens[0].tolist()):
            assert number == (block[at] if at >= 0 else 0), other


def test_units_of_short_requests():
    table = torch.tensor([[5, 7]], dtype=torch.int32)
    for length, units in [(1, [20]), (16, [20]), (17, [20, 21]), (32, [20, 21]), (33, [20, 21, 22]), (80, [20, 23, 28])]:
        got, all_new = Units(USUAL, 4, 1, 1, BLOCK, torch.device("cpu")), torch.tensor([length], dtype=torch.int32)
        got.begin(torch.tensor([-1]), all_new, table, all_new, 0)
        assert [unit for unit in got.owner.tolist() if unit >= 0] == units, length
    assert USUAL.columns == 3 * UNIT


def test_calls_that_do_not_fit_are_refused():
    from tqkv import TqkvError, _native

    for wrong, why in [((1 << 25, 2, BLOCK), "first and 2 newest units"), ((1, 2, 24), "blocks of 24 tokens")]:
        with pytest.raises(TqkvError, match=why):
            _native.Units(*wrong)
    units, of = Units(USUAL, 4, 2, 8, BLOCK, torch.device("cpu")), torch.ones(2, dtype=torch.int32)
    slots, table = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int32)
    for given, why in [((slots, of[:1], table, of, 0), "1 queries"), ((slots, of, table.view(-1)[:5], of, 0), "a table of 5 entries")]:
        with pytest.raises(TqkvError, match=why):
            units.begin(*given)
    with pytest.raises(TqkvError, match="144 places are not valid"):
        units._call("see", table, of, None, slots.new_zeros(144), of.clone(), of.clone())


def test_requests_with_rows_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("TQKV_EXACT", raising=False)
    # 6 MB for each request of a model of 8 billion parameters, on cards of 80 and 24 GB: 2 % of the memory, and less on the smaller one.
    assert [requests(most, 6 << 20, 72 << 30) for most in (8, 1024)] == [8, 245]
    assert [requests(most, 6 << 20, 21 << 30) for most in (8, 1024)] == [8, 71]
    assert (requests(1024, 6 << 20, 1 << 40), requests(8, 6 << 20, 1 << 20), requests(8, 0, 1 << 30)) == (256, 0, 8)
    monkeypatch.setenv("TQKV_EXACT", "0")
    assert requests(8, 6 << 20, 72 << 30) == 0
    monkeypatch.setenv("TQKV_EXACT", "500")
    assert requests(1024, 6 << 20, 1 << 20) == 500
    from tqkv import TqkvError

    for wrong in ("-1", "many", "1.5"):
        monkeypatch.setenv("TQKV_EXACT", wrong)
        with pytest.raises(TqkvError, match="expected a number of requests"):
            requests(8, 6 << 20, 72 << 30)
