"""Log-probabilities of committed tokens and their likeliest rivals, from the target's own unprocessed logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True)
class Score:
    """One token's natural log-probability, and the likeliest (token, log-probability) at its place, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def score(logits: mx.array, tokens: Sequence[int], top: int | None) -> tuple[Score, ...]:
    """Scores of tokens [T] picked from logits [T, V]; nothing where `top` is None."""
    if top is None or not tokens:
        return ()
    return tuple(_one(logits[i], token, top) for i, token in enumerate(tokens))


def _one(row: mx.array, token: int, top: int) -> Score:
    row = row.astype(mx.float32)
    logprobs = row - mx.logsumexp(row)
    best = mx.argsort(-logprobs)[:top]
    ids, values = np.array(best).tolist(), np.array(logprobs[best]).tolist()
    return Score(token, float(np.array(logprobs[token])), tuple(zip(ids, values, strict=True)))
