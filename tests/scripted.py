"""Drafters with a script: they know the plain tokens and are right or wrong on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_dspark.models.drafter import DraftBlock, DraftRequest, block_of

Script = Callable[[Sequence[int], int, int], list[int]]
"""(plain ids of the whole sequence, index of the first draft, drafts wanted) -> drafts."""


class Scripted:
    """Proposes what its script says; asks for taps too, so that passing them along is exercised."""

    def __init__(self, plain: Sequence[int], script: Script, taps: tuple[int, ...] = (0,)):
        self.plain, self.script = list(plain), script
        self.name, self.sources, self.taps, self.max_draft, self.context = "scripted", ("scripted",), taps, 7, 4

    def new_state(self) -> list[int]:
        return []

    def copy_state(self, state: list[int]) -> list[int]:
        return list(state)

    def state_nbytes(self, state: list[int]) -> int:
        return 8 * len(state)

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        return [block_of(self.script(self.plain, r.position + 1, r.count)[: r.count], self.name) for r in requests]

    def observe(self, state: list[int], tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> Any:
        assert position == len(state), "a drafter must see every token once, in order"
        assert all(min(len(tokens), self.context) <= rows.shape[0] <= len(tokens) for rows in taps.values())
        state += tokens


def oracle(plain: Sequence[int], at: int, count: int) -> list[int]:
    return [*plain[at : at + count], *[1] * count][:count]


def liar(plain: Sequence[int], at: int, count: int) -> list[int]:
    return [(t + 1) % 250 for t in oracle(plain, at, count)]


def random_drafts(seed: int) -> Script:
    r = np.random.default_rng(seed)
    return lambda plain, at, count: [int(t) for t in r.integers(0, 250, count)]


def pattern(lengths: Sequence[int]) -> Script:
    """Right for the first lengths[i] drafts of round i, then wrong."""
    turns: Iterator[int] = itertools.cycle(lengths)

    def script(plain: Sequence[int], at: int, count: int) -> list[int]:
        good = next(turns)
        right, wrong = oracle(plain, at, count), liar(plain, at, count)
        return right[:good] + wrong[good:]

    return script
