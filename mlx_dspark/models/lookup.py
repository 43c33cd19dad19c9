"""Drafts copied from the sequence's own past: what followed the last time its newest n-gram occurred.

Prompt-lookup decoding (Saxena, 2023), on the host: O(1) work a token, no weights and no taps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlx_dspark.models.confidence import Even
from mlx_dspark.models.drafter import DraftBlock, DraftRequest, block_of


@dataclass
class LookupState:
    """The consumed ids, and for every n-gram in them the index just after its latest occurrence."""

    ids: list[int] = field(default_factory=list)
    after: dict[tuple[int, ...], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lookup:
    """Longest match first, from `longest` down to `shortest` tokens, the anchor included."""

    longest: int = 4
    shortest: int = 2
    max_draft: int = 7
    name: str = "lookup"
    sources: tuple[str, ...] = ("lookup",)
    taps: tuple[int, ...] = ()
    context: int = 0

    def new_state(self) -> LookupState:
        return LookupState()

    def copy_state(self, state: LookupState) -> LookupState:
        return LookupState(list(state.ids), dict(state.after))

    def state_nbytes(self, state: LookupState) -> int:
        return 8 * len(state.ids) + 200 * len(state.after)

    def observe(self, state: LookupState, tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> Any:
        for token in tokens:
            state.ids.append(token)
            end = len(state.ids)
            for n in range(self.shortest, min(self.longest, end) + 1):
                state.after[tuple(state.ids[end - n :])] = end

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        return [self._copy(r) for r in requests]

    def _copy(self, request: DraftRequest) -> DraftBlock:
        """A block whose margin is the length of the match."""
        state: LookupState = request.state
        recent = [*state.ids[-self.longest + 1 :], request.anchor]
        for n in range(min(self.longest, len(recent)), self.shortest - 1, -1):
            start = state.after.get(tuple(recent[-n:]))
            if start is not None:
                drafts = state.ids[start : start + request.count]
                return DraftBlock(mx.array(drafts, mx.int32), self.name, Even(float(n)))
        return block_of((), self.name)
