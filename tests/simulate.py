"""Decoding without models or clock: a policy, true costs and a chance that each draft stands give a throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from mlx_dspark.decode.cap import CapPolicy, Moment, Outcome
from mlx_dspark.decode.cost import CostTable
from mlx_dspark.models.drafter import DraftBlock, block_of

Chance = Callable[[int], float]
"""Position of a draft in the stream -> how likely it stands if those before it in its block do."""
MOST = 7


def table(step: Callable[[int], float], draft: float = 0.15, each: float = 0.01) -> CostTable:
    """`step(rows)`, the drafter's price and that of each draft are in plain steps of 10 ms."""
    drafts = (0.0, *(0.01 * (draft + each * n) for n in range(1, MOST + 1)))
    return CostTable({128: tuple(0.01 * step(rows) for rows in range(1, 9))}, drafts, 1e-5, 0.0)


FLAT = table(lambda rows: 1 + 0.02 * (rows - 1))
LINEAR = table(lambda rows: 1 + 0.2 * (rows - 1))
STEEP = table(lambda rows: 1 + 0.8 * (rows - 1))
COSTS = {"flat": FLAT, "linear": LINEAR, "steep": STEEP}


@dataclass(frozen=True)
class Told:
    """A confidence that was scripted."""

    margins: Sequence[float]

    def arrays(self) -> list[mx.array]:
        return []

    def read(self, count: int) -> list[float]:
        return list(self.margins[:count])


@dataclass
class Step:
    """One simulated round."""

    at: int
    asked: int
    kept: int
    tokens: int
    seconds: float
    reason: str


@dataclass
class Simulation:
    """Decodes `tokens` tokens. `sure` turns a draft's true chance into a margin; without it there is none."""

    costs: CostTable
    chance: Chance
    tokens: int = 512
    seed: int = 0
    sure: Callable[[float, np.random.Generator], float] | None = None
    source: str = "dspark"
    steps: list[Step] = field(default_factory=list)

    def run(self, policy: CapPolicy) -> Simulation:
        random, at = np.random.default_rng(self.seed), 0
        self.steps = []
        while at < self.tokens:
            left = self.tokens - at - 1
            room = min(MOST, left) if at else 0
            asked = policy.ask(Moment(room, 100 + at))
            assert 0 <= asked <= room
            policy.learn()
            block = policy.trim(self.block(at, asked, random))
            kept, drafts = len(block), block.ids()
            truth = [self.token(at + i) for i in range(kept + 1)]
            standing = [d == t for d, t in zip(drafts, truth, strict=False)]
            stream = truth[: [*standing, False].index(False) + 1]
            seconds = self.costs.verify_time(1 + kept, 100 + at) + self.costs.overhead
            seconds += self.costs.draft_time(asked) if asked else 0.0
            policy.observe(Outcome(kept, stream, seconds))
            self.steps.append(Step(at, asked, kept, len(stream), seconds, policy.choice.reason))
            at += len(stream)
        return self

    def block(self, at: int, count: int, random: np.random.Generator) -> DraftBlock:
        chances = [self.chance(at + i) for i in range(count)]
        right = random.random(count) < chances
        made = block_of([self.token(at + i) if ok else 0 for i, ok in enumerate(right)], self.source)
        if self.sure is None or not count:
            return made
        return DraftBlock(made.tokens, made.source, Told([self.sure(c, random) for c in chances]))

    @staticmethod
    def token(at: int) -> int:
        return 1 + at % 1000

    @property
    def seconds(self) -> float:
        return sum(s.seconds for s in self.steps)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return sum(s.tokens for s in self.steps) / self.seconds

    @property
    def plain(self) -> float:
        """Tokens a second without drafts."""
        return 1 / (self.costs.verify_time(1, 128) + self.costs.overhead)


def throughput(
    costs: CostTable, chance: Chance, make: Callable[[], CapPolicy], seeds: int = 6, **more: object
) -> float:
    """Tokens a second over several streams."""
    runs = [Simulation(costs, chance, seed=s, **more).run(make()) for s in range(seeds)]  # type: ignore[arg-type]
    return sum(sum(s.tokens for s in r.steps) for r in runs) / sum(r.seconds for r in runs)
