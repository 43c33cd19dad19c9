"""The one pick rule: argmax( filtered(processed logits / T) + gumbel noise keyed by (seed, position) ).

A token is a function of the context and the request, whatever drafts and however many rows are picked together:
every step below works on one row alone. Never waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.errors import OptionError
from mlx_dspark.ops.kernels import STOCK

WORD = (1 << 64) - 1
COLDEST = 1e-20  # a colder divisor would leave float32's range and change no pick


class Step(Protocol):
    """A change to one row's float32 logits [V]; `pending` are the uncommitted tokens before it."""

    def __call__(self, row: mx.array, pending: mx.array | None) -> mx.array: ...


class Sampler:
    """Picks the tokens of one sequence; knows its committed history. `likeliest` picks where nothing else is asked."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        vocab_size: int,
        likeliest: Callable[[mx.array], mx.array] = STOCK.likeliest,
    ):
        self.params = params
        self._history = History(prompt_ids, vocab_size)
        self._steps = _steps(params, self._history)
        self._choose = _likeliest if params.greedy else _keyed(params.seed)
        self._likeliest = likeliest
        self.plain = params.greedy and not self._steps  # is a pick the likeliest token and nothing else?

    def pick(self, logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
        """Ids [R] for logits [R, V]: row r predicts the token at `position` + r.

        The last row comes after all `pending` tokens [P], row r after the first P - (R-1-r) of them.
        """
        return self._likeliest(logits) if self.plain else self._row_by_row(logits, position, pending)

    def commit(self, tokens: Sequence[int]) -> None:
        self._history.add(tokens)

    def _row_by_row(self, logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
        count, known = logits.shape[0], 0 if pending is None else pending.shape[0]
        picks = []
        for r in range(count):
            before = known - (count - 1 - r)
            row = logits[r].astype(mx.float32)
            for step in self._steps:
                row = step(row, pending[:before] if pending is not None and before > 0 else None)
            picks.append(self._choose(row, position + r))
        return mx.stack(picks).astype(mx.int32)


def _likeliest(row: mx.array, position: int) -> mx.array:
    return mx.argmax(row)


def _keyed(seed: int | None) -> Callable[[mx.array, int], mx.array]:
    assert seed is not None, "a sampled request is settled first"
    return lambda row, position: mx.argmax(row + mx.random.gumbel(row.shape, key=noise_key(seed, position)))


class History:
    """Counts of generated tokens, and which tokens occurred at all, on the host until a step asks."""

    def __init__(self, prompt_ids: Sequence[int], vocab_size: int):
        self.generated = np.zeros(vocab_size, np.float32)
        self.seen = np.zeros(vocab_size, bool)
        self.seen[list(prompt_ids)] = True
        self._device: tuple[mx.array, mx.array] | None = None

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:  # a round's few: faster than an indexed addition
            self.generated[token] += 1
            self.seen[token] = True
        self._device = None

    def with_pending(self, pending: mx.array | None) -> tuple[mx.array, mx.array]:
        """Generated counts and seen marks [V] with the pending tokens added."""
        if self._device is None:
            self._device = mx.array(self.generated), mx.array(self.seen)
        counts, seen = self._device
        if pending is None:
            return counts, seen
        counts = counts.at[pending].add(1.0)  # whole numbers: exact in any order
        return counts, seen | (counts > 0)


def noise_key(seed: int, position: int) -> mx.array:
    """Two words mixed from (seed, position) by SplitMix64 (Steele et al., 2014); distinct positions never collide."""
    mixed = _mix(_mix(seed & WORD) + position * 0x9E3779B97F4A7C15 & WORD)
    return mx.array([mixed >> 32, mixed & 0xFFFFFFFF], mx.uint32)


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & WORD
    return z ^ (z >> 31)


def _steps(p: SamplingParams, history: History) -> list[Step]:
    """The steps a request asks for, in order: bias, penalties, temperature, top-k, top-p, min-p."""
    steps: list[Step] = []
    if p.logit_bias:
        steps.append(_bias(p.logit_bias, history.generated.shape[0]))
    repetition, presence, frequency = p.repetition_penalty or 1.0, p.presence_penalty or 0.0, p.frequency_penalty or 0.0
    if repetition != 1:
        steps.append(_repetition(repetition, history))
    if presence or frequency:
        steps.append(_counted(presence, frequency, history))
    if p.greedy:
        return steps
    steps.append(_temperature(p.temperature or 1.0))
    if p.top_k:
        steps.append(_top_k(p.top_k))
    if p.top_p not in (None, 1):
        steps.append(_top_p(p.top_p or 1.0))
    if p.min_p:
        steps.append(_min_p(p.min_p))
    return steps


def _bias(bias: Mapping[int, float], vocab_size: int) -> Step:
    table = np.zeros(vocab_size, np.float32)
    for token, value in bias.items():
        if token >= vocab_size:
            raise OptionError(f"logit_bias names the token {token}, but the model's last is {vocab_size - 1}")
        table[token] = value
    added = mx.array(table)
    return lambda row, pending: row + added


def _repetition(penalty: float, history: History) -> Step:
    def step(row: mx.array, pending: mx.array | None) -> mx.array:
        _, seen = history.with_pending(pending)
        return mx.where(seen, mx.where(row > 0, row / penalty, row * penalty), row)

    return step


def _counted(presence: float, frequency: float, history: History) -> Step:
    def step(row: mx.array, pending: mx.array | None) -> mx.array:
        counts, _ = history.with_pending(pending)
        return row - presence * (counts > 0).astype(mx.float32) - frequency * counts

    return step


def _temperature(temperature: float) -> Step:
    divisor = max(temperature, COLDEST)
    return lambda row, pending: row / divisor


def _top_k(k: int) -> Step:
    """Keep the k largest; ties at the border stay with the lower ids."""

    def step(row: mx.array, pending: mx.array | None) -> mx.array:
        return row if k >= row.shape[0] else _largest(row, -mx.sort(-row), mx.array(k))

    return step


def _top_p(p: float) -> Step:
    """Keep the smallest set of likeliest tokens whose probability reaches p; the likeliest always stays."""

    def step(row: mx.array, pending: mx.array | None) -> mx.array:
        ranked = -mx.sort(-row)
        mass_before = mx.cumsum(mx.softmax(ranked), inclusive=False)
        return _largest(row, ranked, mx.maximum((mass_before < p).sum(), 1))

    return step


def _min_p(p: float) -> Step:
    """Drop what is less likely than p times the likeliest."""
    below = math.log(p)
    return lambda row, pending: mx.where(row >= row.max() + below, row, -mx.inf)


def _largest(row: mx.array, ranked: mx.array, count: mx.array) -> mx.array:
    """The `count` largest of a row, given its values in falling order; of equals the lower ids, on any sort."""
    border = ranked[count - 1]
    above, equal = row > border, row == border
    kept = above | (equal & (mx.cumsum(equal.astype(mx.int32)) <= count - above.sum()))
    return mx.where(kept, row, -mx.inf)
