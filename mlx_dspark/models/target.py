"""What decoding needs of a target model, whatever its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlx_dspark.models.state import State, Trace
from mlx_dspark.ops.linear import Linear

Taps = Mapping[int, mx.array]


@dataclass(frozen=True, eq=False)
class Verification:
    """One forward over every row's anchor and draft block, rows packed: logits [T, V], taps[layer] [T, H]."""

    logits: mx.array
    taps: Taps
    trace: Trace


class Target(Protocol):
    """Weights and configuration, shared by all sequences."""

    head: Linear

    @property
    def vocab_size(self) -> int: ...

    @property
    def prefill_grid(self) -> int | None:
        """Absolute positions prefill chunks must end on, or None where the chunk size cannot change a bit."""

    def new_state(self, rows: int = 1) -> State:
        """An empty State of `rows` sequences."""

    def prefill(self, state: State, row: int, tokens: Sequence[int], taps: Sequence[int] = ()) -> Taps:
        """Consume tokens into one row and return the named layers' outputs [T, H]; no logits are made."""

    def verify(self, state: State, blocks: Sequence[mx.array], taps: Sequence[int] = ()) -> Verification:
        """Consume one block of ids [T_b] a row; the bits of each row are those of one-token forwards."""

    def likeliest(self, logits: mx.array) -> mx.array:
        """The first largest number's place (int32) in each row of logits [R, V]."""

    def rollback(self, state: State, trace: Trace, keep: Sequence[int]) -> None:
        """Undo all but the first keep[b] tokens of each row's block."""
