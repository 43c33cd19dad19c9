"""How many drafts a round asks for and how many of them it verifies: what a policy is, and the fixed one.

A policy decides from what is known before the verify, and is told what came of it. It knows no model and no clock,
and cannot change a token. decode/auto.py holds the one that learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlx_dspark.models.drafter import DraftBlock, FirstFound, Judge


@dataclass(frozen=True)
class Moment:
    """Before a round: `room` drafts can still be used, `depth` tokens are consumed, `sharing` sequences take part."""

    room: int
    depth: int
    sharing: int = 1


@dataclass(frozen=True)
class Outcome:
    """After it: `kept` drafts were verified, `tokens` committed; `seconds` are of the whole round."""

    kept: int
    tokens: Sequence[int]
    seconds: float


@dataclass(frozen=True)
class Choice:
    """What a policy did in a round and why: drafts asked for, drafts verified, tokens it expected to commit."""

    asked: int
    kept: int
    predicted: float
    reason: str


class CapPolicy(Judge, Protocol):
    """Called in this order each round; as a Judge in between, where drafters compete. `learn` comes once more at the
    sequence's end."""

    def ask(self, now: Moment) -> int:
        """Most drafts to propose, 0..room."""

    def learn(self) -> None:
        """Think of earlier rounds: the drafts are on their way, so time is free."""

    def trim(self, block: DraftBlock) -> DraftBlock:
        """The part of the block that is worth verifying."""

    def observe(self, outcome: Outcome) -> None:
        """What came of it; the next round waits for this."""

    @property
    def resting(self) -> int:
        """Rounds, this one included, that are sure to ask for nothing."""

    @property
    def choice(self) -> Choice:
        """The latest decision."""


class FixedCap(FirstFound):
    """Always the same number, room permitting; every draft is verified."""

    resting = 0

    def __init__(self, drafts: int):
        super().__init__(drafts)
        self._asked = self._kept = 0

    def ask(self, now: Moment) -> int:
        self._asked, self._kept = max(0, min(self.drafts, now.room)), 0
        return self._asked

    def trim(self, block: DraftBlock) -> DraftBlock:
        self._kept = len(block)
        return block

    def learn(self) -> None:
        """There is nothing to learn."""

    def observe(self, outcome: Outcome) -> None:
        """Changes nothing."""

    @property
    def choice(self) -> Choice:
        return Choice(self._asked, self._kept, 0.0, "pinned")
