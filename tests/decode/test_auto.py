"""The learning cap in simulation: near the best fixed cap, never far below plain decoding, quick to change its mind.

Costs and acceptance are those that A-39 of the issue reports names: flat, linear and steep; 0.9, 0.5 and 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from simulate import COSTS, FLAT, LINEAR, STEEP, Chance, Simulation, Step, Told, table, throughput

from mlx_dspark.decode.auto import SHARE, START, AutoCap
from mlx_dspark.decode.cap import CapPolicy, FixedCap, Moment, Outcome
from mlx_dspark.decode.cost import CostTable
from mlx_dspark.decode.pace import GUESS, Pace
from mlx_dspark.decode.survival import Echo, Experience, Prior, Survival
from mlx_dspark.models.drafter import Contest, DraftBlock, DraftRequest, block_of

PRIORS = {"doubtful": Prior(), "hopeful": Prior(blind=(1.5,), doubt=1.0)}
CURVE = Prior((0.0, 1.0, 2.0, 4.0), (-2.0, 0.0, 1.5, 3.0), (0.0,), (0.5,), 2.0)


def auto(costs: CostTable, prior: Prior = PRIORS["doubtful"], trusted: bool = True) -> AutoCap:
    return AutoCap(Pace(costs, trusted=trusted), {"dspark": Survival(Experience(prior))})


def always(chance: float) -> Chance:
    return lambda at: chance


def best_fixed(costs: CostTable, chance: Chance, **more: object) -> tuple[float, int]:
    return max((throughput(costs, chance, lambda n=n: FixedCap(n), **more), n) for n in range(8))  # type: ignore[misc,arg-type]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("chance", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("costs", COSTS)
def test_it_comes_within_five_percent_of_the_best_fixed_cap(costs: str, chance: float, prior: str) -> None:
    best, _ = best_fixed(COSTS[costs], always(chance))
    assert throughput(COSTS[costs], always(chance), lambda: auto(COSTS[costs], PRIORS[prior])) >= 0.95 * best


def test_what_it_settles_on() -> None:
    """Many drafts where rows are cheap and drafts stand, few or none where not."""
    expected = {("flat", 0.9): (6, 7), ("flat", 0.5): (2, 5), ("linear", 0.9): (3, 7), ("steep", 0.1): (0, 0)}
    for (costs, chance), (low, high) in expected.items():
        steps = Simulation(COSTS[costs], always(chance), tokens=1024).run(auto(COSTS[costs])).steps
        assert low <= np.median([s.kept for s in steps[len(steps) // 2 :]]) <= high, (costs, chance)


@pytest.mark.parametrize("tokens", [256, 1024])
@pytest.mark.parametrize("costs", COSTS)
def test_an_adversary_costs_three_percent_at_most(costs: str, tokens: int) -> None:
    for prior in PRIORS.values():
        run = Simulation(COSTS[costs], always(0.0), tokens=tokens).run(auto(COSTS[costs], prior))
        assert run.speed >= 0.97 * run.plain


def test_an_adversary_that_looks_sure_of_itself_costs_no_more() -> None:
    run = Simulation(LINEAR, always(0.0), tokens=512, sure=lambda chance, random: 4.0).run(auto(LINEAR, CURVE))
    assert run.speed >= 0.97 * run.plain


def test_losses_are_rationed_whatever_the_drafter_does() -> None:
    """Good for a while, bad for a while: never behind plain decoding by more than the purse and its share."""
    for seed, span in ((0, 7), (1, 40), (2, 150)):
        run = Simulation(STEEP, lambda at, span=span: float(at // span % 2 == 0), tokens=1200, seed=seed).run(
            auto(STEEP)
        )  # type: ignore[misc]
        lead = low = 0.0
        for step in run.steps:
            lead += step.tokens - step.seconds * run.plain
            low = min(low, lead)
        assert low >= -(START + SHARE * 1200 + 1)


def after_a_switch(costs: CostTable, before: float, after: float, make: Callable[[], CapPolicy]) -> float:
    """Tokens a second from 64 tokens after the chance changed on, over several streams."""
    steps: list[Step] = []
    for seed in range(12):
        run = Simulation(costs, lambda at: before if at < 256 else after, tokens=576, seed=seed).run(make())
        steps += [s for s in run.steps if s.at >= 256 + 64]
    return sum(s.tokens for s in steps) / sum(s.seconds for s in steps)


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.1), (0.1, 0.9), (0.9, 0.5)])
@pytest.mark.parametrize("costs", COSTS)
def test_it_follows_a_change_of_content_within_64_tokens(costs: str, before: float, after: float) -> None:
    best = max(after_a_switch(COSTS[costs], before, after, lambda n=n: FixedCap(n)) for n in (0, 1, 3, 6, 7))  # type: ignore[misc]
    assert after_a_switch(COSTS[costs], before, after, lambda: auto(COSTS[costs])) >= 0.93 * best


def test_a_block_is_cut_where_its_own_margins_say() -> None:
    """Knowing which drafts are good beats any fixed cap."""

    def mixed(at: int) -> float:
        return 0.95 if at % 16 < 11 else 0.05

    def sure(chance: float, random: np.random.Generator) -> float:
        return 4.0 if chance > 0.5 else 0.0

    told = throughput(LINEAR, mixed, lambda: auto(LINEAR, CURVE), sure=sure)
    blind = throughput(LINEAR, mixed, lambda: auto(LINEAR))
    best, _ = best_fixed(LINEAR, mixed)
    assert told > 1.1 * best
    assert told > 1.1 * blind


@pytest.mark.parametrize("chance", [0.9, 0.5, 0.0])
@pytest.mark.parametrize(
    "costs", [FLAT, LINEAR, STEEP, table(lambda rows: 5 + 5 * rows), table(lambda rows: 1.0, 0.01)]
)
def test_without_a_calibration_it_learns_the_costs_and_does_not_lose(costs: CostTable, chance: float) -> None:
    for seed in range(4):
        run = Simulation(costs, always(chance), tokens=1024, seed=seed).run(auto(GUESS, trusted=False))
        assert run.speed >= 0.97 * run.plain
    best, _ = best_fixed(costs, always(chance), tokens=1024, seeds=12)
    assert throughput(costs, always(chance), lambda: auto(GUESS, trusted=False), seeds=12, tokens=1024) >= 0.85 * best


@pytest.mark.parametrize("factor", [0.6, 1.6])
def test_a_table_that_is_off_is_corrected(factor: float) -> None:
    """What drafting adds is really more, or less, than was measured."""
    real = table(lambda rows: 1 + 0.25 * factor * (rows - 1), 0.2 * factor)
    believed = table(lambda rows: 1 + 0.25 * (rows - 1), 0.2)
    best, _ = best_fixed(real, always(0.7), tokens=1024, seeds=3)
    assert throughput(real, always(0.7), lambda: auto(believed), tokens=1024, seeds=3) >= 0.93 * best


def test_a_machine_that_slows_down_as_a_whole_changes_no_decision() -> None:
    def slowed(factor: float) -> list[tuple[int, int]]:
        costs = CostTable(
            {d: tuple(factor * t for t in times) for d, times in LINEAR.verify.items()},
            tuple(factor * t for t in LINEAR.draft),
        )
        return [(s.asked, s.kept) for s in Simulation(costs, always(0.6)).run(auto(LINEAR)).steps]

    assert slowed(1.0) == slowed(1.25)


def test_decisions_do_not_depend_on_what_comes_later() -> None:
    """Two streams that agree up to a point are treated alike up to it."""
    early = Simulation(LINEAR, lambda at: 0.8, tokens=400).run(auto(LINEAR))
    late = Simulation(LINEAR, lambda at: 0.8 if at < 200 else 0.0, tokens=400).run(auto(LINEAR))
    same = [s for s in early.steps if s.at < 190]
    assert late.steps[: len(same)] == same


def unread(costs: CostTable, chance: float) -> float:
    """Share of drafted rounds whose block was verified without a look at it."""
    policy, looks, drafted, deciding = auto(costs, CURVE), [], 0, False

    class Shy(Told):
        def read(self, count: int) -> list[float]:
            looks.append(deciding)
            return super().read(count)

    for at in range(200):
        asked = policy.ask(Moment(7 if at else 0, 100 + at))
        drafted += asked > 0
        block = (
            DraftBlock(block_of([5] * asked, "x").tokens, "dspark", Shy([2.0] * asked)) if asked else block_of([], "")
        )
        policy.learn()
        deciding = True
        kept = len(policy.trim(block))
        deciding = False
        stood = kept if np.random.default_rng(at).random() < chance else 0
        policy.observe(Outcome(kept, [5] * stood + [5 if stood else 6], 0.01))
    policy.learn()
    assert len(looks) == drafted  # read before or after, every block teaches
    return 1 - sum(looks) / max(1, drafted)


def test_a_block_that_need_not_be_cut_is_read_only_after_the_verify() -> None:
    waiting = CostTable(FLAT.verify, FLAT.draft, 1e-5, 0.0, read=0.002)
    assert unread(waiting, 0.95) > 0.9
    assert unread(FLAT, 0.95) < unread(waiting, 0.95)


def test_a_parked_sequence_rests_until_the_next_probe() -> None:
    """What it says of the rounds to come is kept; the last ones before a probe let the drafter listen."""
    policy, promised, longest = auto(table(lambda rows: 1 + 0.8 * (rows - 1), draft=0.7)), 0, 0
    for at in range(600):
        asked = policy.ask(Moment(7 if at else 0, 100 + at))
        assert not (asked and promised), at
        promised = max(policy.resting, promised) - 1 if policy.resting or promised else 0
        longest = max(longest, policy.resting)
        kept = len(policy.trim(block_of([5] * asked, "dspark")))
        policy.learn()
        policy.observe(Outcome(kept, [6], 0.01))
    assert longest > 32


def test_a_sequence_that_saves_rests_until_its_purse_can_pay() -> None:
    """A hopeful prior whose first drafts all fail: while the purse is too low, rounds go by without a thought."""
    policy, rested, thought = auto(LINEAR, Prior(blind=(3.0,), doubt=500.0)), 0, 0
    for at in range(400):
        asked = policy.ask(Moment(7 if at else 0, 100 + at))
        saving = policy.choice.reason == "saving"
        rested, thought = rested + (saving and policy.resting > 0), thought + (saving and not policy.resting)
        kept = len(policy.trim(block_of([5] * asked, "dspark")))
        policy.learn()
        policy.observe(Outcome(kept, [6], 0.01))
    assert rested > 4 * thought > 0


def test_reasons_are_given() -> None:
    policy = auto(LINEAR, PRIORS["hopeful"])
    assert policy.ask(Moment(0, 10)) == 0
    assert policy.choice.reason == "first token"
    policy.observe(Outcome(0, [1], 0.01))
    asked = policy.ask(Moment(7, 11))
    kept = policy.trim(block_of([1] * asked, "dspark"))
    choice = policy.choice
    assert (choice.asked, choice.kept, choice.reason) == (asked, len(kept), "pays")
    assert 1 < choice.predicted <= 1 + len(kept)
    reasons = {s.reason for s in Simulation(STEEP, always(0.1), tokens=512).run(auto(STEEP)).steps}
    assert {"parked", "probe", "first token", "no room"} <= reasons


def test_an_echo_confirms_drafts_nobody_verified() -> None:
    echo = Echo([5, 6, 7], [0.1, 0.2, 0.3])
    assert echo.hear([5]) == [(0, 0.1, True)]
    assert echo.hear([6, 9]) == [(1, 0.2, True), (2, 0.3, False)]
    assert echo.hear([7]) == []


class Canned:
    """A drafter that always proposes the same, as sure as it is told to be."""

    taps: tuple[int, ...] = ()
    max_draft, context = 7, 0

    def __init__(self, name: str, margin: float):
        self.name, self.sources, self.margin, self.asked = name, (name,), margin, 0

    def new_state(self) -> None:
        return None

    def copy_state(self, state: object) -> None:
        return None

    def state_nbytes(self, state: object) -> int:
        return 0

    def observe(self, *args: object) -> None:
        pass

    def propose(self, requests: list[DraftRequest]) -> list[DraftBlock]:
        self.asked += 1
        return [
            DraftBlock(block_of([3] * r.count, "x").tokens, self.name, Told([self.margin] * r.count)) for r in requests
        ]


def contest(lookup: float, dspark: float) -> Iterator[tuple[str, int]]:
    """(winner, times the dearer drafter was asked) round by round."""
    survivals = {name: Survival(Experience(CURVE)) for name in ("lookup", "dspark")}
    policy = AutoCap(Pace(LINEAR), survivals)
    cheap, dear = Canned("lookup", lookup), Canned("dspark", dspark)
    both = Contest([cheap, dear])
    for at in range(40):
        count = policy.ask(Moment(7, 100 + at))
        request = DraftRequest(both.new_state(), 3, 100 + at, count, lambda *_: None, policy)  # type: ignore[arg-type,return-value]
        (block,) = both.propose([request])
        kept = policy.trim(block)
        policy.observe(Outcome(len(kept), [3] * (len(kept) + 1), 0.01))
        yield block.source, dear.asked


def test_a_free_copy_that_is_sure_spares_the_drafter() -> None:
    rounds = list(contest(4.0, 1.0))
    assert {source for source, _ in rounds[5:]} == {"lookup"}
    assert rounds[-1][1] <= 5


def test_a_doubtful_copy_loses_to_a_sure_drafter() -> None:
    """Both are right here, so what the sequence shows raises the copy; at first the drafter wins."""
    rounds = list(contest(0.0, 4.0))
    assert rounds[1][0] == "dspark"
    assert rounds[1][1] == 2


def test_many_rows_make_each_row_dearer() -> None:
    """Eight sequences of one draft each are sixteen rows; alone, two."""
    alone, crowded = auto(LINEAR, PRIORS["hopeful"]), auto(LINEAR, PRIORS["hopeful"])
    assert crowded.ask(Moment(7, 100, 8)) > 0
    assert alone.ask(Moment(7, 100, 1)) > 0
    flat_to_eight = table(lambda rows: 1 + 0.01 * rows if rows < 8 else 8.0)
    assert auto(flat_to_eight, PRIORS["hopeful"]).ask(Moment(7, 100, 1)) > 0
    assert auto(flat_to_eight, PRIORS["doubtful"]).ask(Moment(7, 100, 8)) <= 4
