"""How likely each draft of a block stands if the ones before it stood, learnt as sequences are decoded.

A prior, measured once, turns the drafter's margin into log-odds; what earlier sequences and this one show shifts
them, all positions together and each by itself. Old evidence fades, so that the estimate follows a change of
content. Pure arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LASTING, FADING = 0.998, 0.97
"""What a draft's evidence is still worth when the next one is judged: for all sequences, and within one."""
FURTHEST = 5.0
"""Most that log-odds are shifted by, by each kind of evidence."""


@dataclass(frozen=True)
class Prior:
    """Log-odds that a draft stands. `odds` at the margins `knots`, by straight lines between and flat beyond.

    `offsets` are added by position, the last one from there on; `blind` is for drafts without a margin. `doubt` is the
    precision given to all this in a new sequence: it may be off by about 1 / sqrt(doubt) as a whole.
    """

    knots: tuple[float, ...] = (0.0,)
    odds: tuple[float, ...] = (0.0,)
    offsets: tuple[float, ...] = (0.0,)
    blind: tuple[float, ...] = (0.0,)
    doubt: float = 0.7

    def of(self, position: int, margin: float | None) -> float:
        """Log-odds of the draft at `position` (0 is the first)."""
        if margin is None:
            return self.blind[min(position, len(self.blind) - 1)]
        return self._curve(margin) + self.offsets[min(position, len(self.offsets) - 1)]

    def _curve(self, margin: float) -> float:
        right = bisect_right(self.knots, margin)
        if right == 0:
            return self.odds[0]
        if right == len(self.knots):
            return self.odds[-1]
        a, b = self.knots[right - 1], self.knots[right]
        share = (margin - a) / (b - a)
        return self.odds[right - 1] * (1 - share) + self.odds[right] * share


class Shifts:
    """Fading estimates of what to add to log-odds: one for all positions, and one more for each.

    A step of a Bayesian logistic regression (Laplace) each; precisions fall back to `doubt` as evidence fades.
    """

    def __init__(self, doubt: float, fade: float):
        self._doubts, self._fade = [doubt, 2 * doubt], fade
        self._values, self._precisions = [0.0, 0.0], [doubt, 2 * doubt]

    def at(self, position: int) -> float:
        while len(self._values) < position + 2:
            self._values.append(0.0)
            self._precisions.append(self._doubts[1])
        return self._values[0] + self._values[position + 1]

    def learn(self, position: int, error: float, variance: float) -> None:
        """`error` is 0 or 1 less the chance given, which has this variance; the position was asked `at` before."""
        values, precisions = self._values, self._precisions
        for index, doubt in ((0, self._doubts[0]), (position + 1, self._doubts[1])):
            faded = self._fade * precisions[index]
            precision = precisions[index] = (faded if faded > doubt else doubt) + variance
            value = values[index] + error / precision
            values[index] = value if -FURTHEST < value < FURTHEST else FURTHEST if value > 0 else -FURTHEST


class Experience:
    """What all sequences so far have shown of one source of drafts."""

    def __init__(self, prior: Prior):
        self.prior = prior
        self.shifts = Shifts(2 * prior.doubt, LASTING)


class Survival:
    """The estimates of one sequence for one source; what it learns goes to the common experience too."""

    def __init__(self, experience: Experience):
        self._experience = experience
        self._shifts = Shifts(experience.prior.doubt, FADING)

    def odds(self, margins: Sequence[float | None]) -> list[float]:
        """The prior's log-odds of a block's drafts, before any shift."""
        of = self._experience.prior.of
        return [of(i, m) for i, m in enumerate(margins)]

    def shifts(self, count: int) -> list[float]:
        """What was learnt adds this to the log-odds of positions 0..count - 1."""
        common, own = self._experience.shifts, self._shifts
        return [common.at(i) + own.at(i) for i in range(count)]

    def chances(self, odds: Sequence[float]) -> list[float]:
        """Chance that each draft stands, those before it standing."""
        return [sigmoid(o + s) for o, s in zip(odds, self.shifts(len(odds)), strict=True)]

    def learn(self, position: int, odds: float, stood: bool) -> None:
        """A draft, all those before it standing, stood or fell."""
        common, own = self._experience.shifts, self._shifts
        chance = sigmoid(odds + common.at(position) + own.at(position))
        error, variance = stood - chance, chance * (1 - chance)
        common.learn(position, error, variance)
        own.learn(position, error, variance)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -500 else 0.0
