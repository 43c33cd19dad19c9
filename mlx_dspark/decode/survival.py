"""How likely each draft of a block stands if the ones before it stood, learnt as sequences are decoded.

A prior, measured once, turns the drafter's margin into log-odds; what earlier sequences and this one show shifts
them, all positions together and each by itself. Old evidence fades, so that the estimate follows a change of
content. Pure arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LASTING, FADING = 0.999, 0.97
"""What a block's evidence is still worth after the next one's: for all sequences, and within one."""
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
    """Estimates of what to add to log-odds: one for all positions, and one more for each, from evidence that fades.

    Each is the mean of a Bayesian logistic regression (Laplace) whose prior is 0 with precision `doubt`; what is not
    seen again returns there.
    """

    def __init__(self, doubt: float, fade: float):
        self._doubt, self._fade = doubt, fade
        self._values, self._evidence = [0.0], [0.0]

    def at(self, position: int) -> float:
        while len(self._values) < position + 2:
            self._values.append(0.0)
            self._evidence.append(0.0)
        return self._values[0] + self._values[position + 1]

    def learn(self, position: int, error: float, variance: float) -> None:
        """`error` is 0 or 1 less the chance given, which has this variance; the position was asked `at` before."""
        values, evidence = self._values, self._evidence
        for index, doubt in ((0, self._doubt), (position + 1, 2 * self._doubt)):
            evidence[index] += variance
            value = values[index] + error / (doubt + evidence[index])
            values[index] = value if -FURTHEST < value < FURTHEST else FURTHEST if value > 0 else -FURTHEST

    def fade(self) -> None:
        """A block's evidence is in."""
        for index, evidence in enumerate(self._evidence):
            doubt = 2 * self._doubt if index else self._doubt
            faded = self._evidence[index] = self._fade * evidence
            self._values[index] *= self._fade * (doubt + evidence) / (doubt + faded)


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

    def learn(self, evidence: Iterable[tuple[int, float, bool]]) -> None:
        """(position, odds, stood) of one block's drafts; of each, those before it stood."""
        common, own = self._experience.shifts, self._shifts
        common.fade()
        own.fade()
        for position, odds, stood in evidence:
            chance = sigmoid(odds + common.at(position) + own.at(position))
            error, variance = stood - chance, chance * (1 - chance)
            common.learn(position, error, variance)
            own.learn(position, error, variance)


@dataclass
class Echo:
    """A proposal and how much of it what was decoded since has confirmed."""

    ids: Sequence[int]
    odds: Sequence[float]
    confirmed: int = 0

    @property
    def over(self) -> bool:
        """Is every draft decided, or out of reach?"""
        return self.confirmed >= len(self.ids)

    def hear(self, tokens: Iterable[int]) -> list[tuple[int, float, bool]]:
        """(position, odds, stood) of each draft the tokens decide; nothing after the first that fell."""
        heard = []
        for token in tokens:
            if self.over:
                break
            at, stood = self.confirmed, self.ids[self.confirmed] == token
            self.confirmed = at + 1 if stood else len(self.ids)
            heard.append((at, self.odds[at], stood))
        return heard


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -500 else 0.0
