"""How many drafts a round may verify. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class CapPolicy(Protocol):
    """Asked before each round; `room` is how many drafts could still be emitted."""

    def cap(self, room: int) -> int: ...


@dataclass(frozen=True)
class FixedCap:
    """Always the same number, room permitting."""

    drafts: int

    def cap(self, room: int) -> int:
        return max(0, min(self.drafts, room))
