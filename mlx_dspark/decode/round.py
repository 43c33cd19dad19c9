"""THE loop body, over B sequences: cap -> propose -> verify -> pick -> accept -> commit -> rollback -> observe.

A draft stands while it equals what the target picks, so every kind of decoding is this function. The one place
that waits for the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.decode.accept import accept
from mlx_dspark.decode.scores import Score, score
from mlx_dspark.decode.session import Session
from mlx_dspark.models.drafter import DraftBlock, Drafter, DraftRequest
from mlx_dspark.models.state import State
from mlx_dspark.models.target import Target


@dataclass(frozen=True)
class Round:
    """What one round did for one sequence. `tokens` are those committed, `pieces` the text each one completed;
    `times` are seconds by phase; `scores` are there if the session asked for log-probabilities."""

    proposed: int
    accepted: int
    tokens: tuple[int, ...]
    text: str
    source: str
    finish: str | None
    times: dict[str, float] = field(default_factory=dict)
    pieces: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()


class LazyClock:
    """Splits a round's time into phases; `arrays` are what a phase has made.

    Leaves the device alone: phases get the time of building, `wait` gets the one synchronisation.
    """

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str, arrays: Sequence[mx.array]) -> None:
        now = time.perf_counter()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def laps(self) -> dict[str, float]:
        return dict(self._laps)


class SyncClock(LazyClock):
    """Waits for the device at the end of each phase, so that times are true shares (slower: for traces)."""

    def lap(self, phase: str, arrays: Sequence[mx.array]) -> None:
        mx.eval(list(arrays))
        super().lap(phase, arrays)


def run_round(target: Target, sessions: Sequence[Session], clock: type[LazyClock] = LazyClock) -> list[Round]:
    """Advance every session by one round, in one target forward. Each must be prefilled and unfinished."""
    watch = clock()
    blocks = _propose(sessions)
    watch.lap("draft", [b.tokens for b in blocks])

    state = State([s.row for s in sessions])
    layers = sorted({layer for s in sessions for layer in s.drafter.taps})
    ids = [_with_anchor(s.anchor, b) for s, b in zip(sessions, blocks, strict=True)]
    verified = target.verify(state, ids, layers)
    watch.lap("verify", [verified.logits, *verified.taps.values(), *state.arrays()])

    spans = _spans(ids)
    picks = [
        s.sampler.pick(verified.logits[begin:end], s.position + 1, b.tokens if len(b) else None)
        for s, b, (begin, end) in zip(sessions, blocks, spans, strict=True)
    ]
    mx.eval(picks, [b.tokens for b in blocks])
    watch.lap("wait", [])

    committed = []
    for s, b, pick in zip(sessions, blocks, picks, strict=True):
        drafts = _ids(b.tokens)
        found = accept(drafts, _ids(pick))
        s.cap.observe(len(drafts), found.length)
        committed.append((found.length, s.commit([*drafts[: found.length], found.next_token])))
    scores = [
        score(verified.logits[begin : begin + len(c.tokens)], c.tokens, s.top_logprobs)
        for s, (_, c), (begin, _) in zip(sessions, committed, spans, strict=True)
    ]
    target.rollback(state, verified.trace, [len(c.tokens) for _, c in committed])
    watch.lap("rollback", state.arrays())

    for s, (_, c), (begin, _) in zip(sessions, committed, spans, strict=True):
        rows = slice(begin, begin + len(c.tokens))
        s.observe({layer: verified.taps[layer][rows] for layer in s.drafter.taps})
    watch.lap("observe", [])
    times = watch.laps()
    return [
        Round(len(b), min(length, len(c.tokens)), c.tokens, c.text, b.source, c.finish, times, c.pieces, found)
        for b, (length, c), found in zip(blocks, committed, scores, strict=True)
    ]


def _propose(sessions: Sequence[Session]) -> list[DraftBlock]:
    """One block a session; sessions that share a drafter are asked together."""
    groups: dict[int, tuple[Drafter, list[int]]] = {}
    for index, session in enumerate(sessions):
        groups.setdefault(id(session.drafter), (session.drafter, []))[1].append(index)
    blocks: dict[int, DraftBlock] = {}
    for drafter, members in groups.values():
        requests = [
            DraftRequest(s.draft_state, s.anchor, s.position, s.drafts_wanted(), s.sampler.pick, s.sampler.plain)
            for s in (sessions[i] for i in members)
        ]
        blocks.update(zip(members, drafter.propose(requests), strict=True))
    return [blocks[i] for i in range(len(sessions))]


def _with_anchor(anchor: int, block: DraftBlock) -> mx.array:
    first = mx.array([anchor], mx.int32)
    return mx.concatenate([first, block.tokens.astype(mx.int32)]) if len(block) else first


def _spans(ids: Sequence[mx.array]) -> list[tuple[int, int]]:
    spans, begin = [], 0
    for block in ids:
        spans.append((begin, begin + block.shape[0]))
        begin += block.shape[0]
    return spans


def _ids(tokens: mx.array) -> list[int]:
    return [int(t) for t in tokens.tolist()]  # type: ignore[union-attr, arg-type]
