"""How many drafts a round may verify, learnt or fixed. Pure arithmetic: no arrays, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class CapPolicy(Protocol):
    """Asked before each round, told after it."""

    def cap(self, room: int) -> int:
        """Drafts for the next round, 0..`room`; `room` is how many can still be used."""

    def observe(self, proposed: int, accepted: int) -> None:
        """A round proposed so many drafts, of which so many stood."""


@dataclass(frozen=True)
class FixedCap:
    """Always the same number, room permitting."""

    drafts: int

    def cap(self, room: int) -> int:
        return max(0, min(self.drafts, room))

    def observe(self, proposed: int, accepted: int) -> None:
        """Nothing to learn."""
