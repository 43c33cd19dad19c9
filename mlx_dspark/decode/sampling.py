"""The one pick rule: argmax( filtered(processed logits / T) + gumbel noise keyed by (seed, position) ).

A token is a function of the context and the request, whatever drafts and however many rows are picked together:
every step below works on one row alone. Never waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from mlx_dspark.decode.params import SamplingParams

WORD = (1 << 64) - 1


class Step(Protocol):
    """A change to one row's float32 logits [V]; `pending` are the uncommitted tokens before it."""

    def __call__(self, row: mx.array, pending: mx.array | None) -> mx.array: ...


class Sampler:
    """Picks the tokens of one sequence; knows its committed history."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int):
        self.params = params
        self._history = History(prompt, vocab_size)
        self._steps = _steps(params, self._history)
        self._choose = self._sampled if not params.greedy else self._greedy

    def pick(self, logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
        """Ids [R] for logits [R, V]: row r predicts the token at `position` + r.

        The last row comes after all `pending` tokens [P], row r after the first P - (R-1-r) of them.
        """
        if not self._steps and self.params.greedy:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        count, known = logits.shape[0], 0 if pending is None else pending.shape[0]
        picks = []
        for r in range(count):
            before = known - (count - 1 - r)
            row = logits[r].astype(mx.float32)
            for step in self._steps:
                row = step(row, pending[:before] if pending is not None and before > 0 else None)
            picks.append(self._choose(row, position + r))
        return mx.stack(picks).astype(mx.int32)

    def commit(self, tokens: Sequence[int]) -> None:
        self._history.add(tokens)

    def _greedy(self, row: mx.array, position: int) -> mx.array:
        return mx.argmax(row)

    def _sampled(self, row: mx.array, position: int) -> mx.array:
        assert self.params.seed is not None
        noise = mx.random.gumbel(row.shape, key=noise_key(self.params.seed, position))
        return mx.argmax(row + noise)


class History:
    """Counts of generated tokens, and which tokens occurred at all, on the host until a step asks."""

    def __init__(self, prompt: Sequence[int], vocab_size: int):
        self.generated = np.zeros(vocab_size, np.float32)
        self.seen = np.zeros(vocab_size, bool)
        self.seen[list(prompt)] = True
        self._device: tuple[mx.array, mx.array] | None = None

    def add(self, tokens: Sequence[int]) -> None:
        np.add.at(self.generated, list(tokens), 1)
        self.seen[list(tokens)] = True
        self._device = None

    def with_pending(self, pending: mx.array | None) -> tuple[mx.array, mx.array]:
        """Generated counts and seen marks [V] with the pending tokens added."""
        if self._device is None:
            self._device = mx.array(self.generated), mx.array(self.seen)
        counts, seen = self._device
        if pending is None:
            return counts, seen
        hits = (mx.arange(counts.shape[0])[None] == pending[:, None]).sum(axis=0).astype(mx.float32)
        return counts + hits, seen | (hits > 0)


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
    if p.repetition_penalty not in (None, 1.0):
        steps.append(_repetition(float(p.repetition_penalty or 1.0), history))
    if p.presence_penalty or p.frequency_penalty:
        steps.append(_counted(p.presence_penalty or 0.0, p.frequency_penalty or 0.0, history))
    if p.greedy:
        return steps
    temperature = float(p.temperature or 1.0)
    steps.append(lambda row, pending: row / temperature)
    filters: list[tuple[object, Callable[[mx.array], mx.array]]] = [
        (p.top_k, lambda row: _top_k(row, int(p.top_k or 0))),
        (p.top_p if p.top_p != 1 else None, lambda row: _top_p(row, float(p.top_p or 1.0))),
        (p.min_p, lambda row: _min_p(row, float(p.min_p or 0.0))),
    ]
    steps += [(lambda row, pending, f=f: f(row)) for wanted, f in filters if wanted]
    return steps


def _bias(bias: Mapping[int, float], vocab_size: int) -> Step:
    table = np.zeros(vocab_size, np.float32)
    for token, value in bias.items():
        table[int(token)] = value
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


def _top_k(row: mx.array, k: int) -> mx.array:
    """Keep the k largest; ties at the border stay with the lower ids."""
    if k >= row.shape[0]:
        return row
    order = mx.argsort(-row)
    return _keep(row, order[:k])


def _top_p(row: mx.array, p: float) -> mx.array:
    """Keep the smallest set of likeliest tokens whose probability reaches p; the likeliest always stays."""
    order = mx.argsort(-row)
    probs = mx.softmax(row)[order]
    before = mx.cumsum(probs) - probs
    kept = mx.where(before < p, row[order], -mx.inf)
    return mx.put_along_axis(mx.full(row.shape, -mx.inf), order, kept, axis=0)


def _min_p(row: mx.array, p: float) -> mx.array:
    return mx.where(row >= row.max() + float(np.log(p)), row, -mx.inf)


def _keep(row: mx.array, ids: mx.array) -> mx.array:
    return mx.put_along_axis(mx.full(row.shape, -mx.inf), ids, row[ids], axis=0)
