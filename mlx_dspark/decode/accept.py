"""Which drafts stand. Pure: one rule for greedy, sampled, penalised and biased decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Acceptance:
    """`length` drafts stand; `next_token` is the target's own after them: correction, or bonus if all stand."""

    length: int
    next_token: int


def accept(drafts: Sequence[int], picks: Sequence[int]) -> Acceptance:
    """A draft stands while it equals the target's pick at its position; `picks` has one more than `drafts`."""
    assert len(picks) == len(drafts) + 1
    length = 0
    while length < len(drafts) and drafts[length] == picks[length]:
        length += 1
    return Acceptance(length, picks[length])
