"""Measures what target steps and drafting cost for a loaded pair on this machine: a CostTable, in a few seconds.

Widths take turns within each repeat, so that a machine that slows down slows all of them; of a width's times the
median of the faster half counts. Deep contexts are measured where time and memory allow, and the table says what was
left out.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_dspark.decode.cap import FixedCap
from mlx_dspark.decode.cost import WIDTHS, CostTable
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.session import Session
from mlx_dspark.engine.calibration_store import Calibration, Key, keep, stored
from mlx_dspark.engine.memory import machine_bytes, state_bytes
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import DraftRequest
from mlx_dspark.models.lookup import Lookup
from mlx_dspark.models.state import Snapshot

if TYPE_CHECKING:
    from mlx_dspark.engine.pair import Pair

Progress = Callable[[float], None]
"""Told the share that is done."""
Say = Callable[[str], None]

DEPTHS = (128, 2048, 8192)
REPEATS, FEWEST = 9, 3
MEMORY_SHARE = 0.1  # of the machine, for the deepest state
TEXT = (
    "The harbour was quiet before dawn. Three boats lay at the pier, and a fourth, painted green, came in slowly. "
    "def area(width, height):\n    return width * height\n\nfor n in range(10):\n    print(n, area(n, n + 1))\n"
    "If each of 6 jars holds 3 tickets, there are 6 * 3 = 18 tickets; 5 are given away, so 18 - 5 = 13 are left. "
)


def machine() -> str:
    """This machine in words: processor and usable cores."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
        cores = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):
        cores = os.cpu_count() or 1
    return f"{name}, {cores} cores"


def calibrated(
    pair: Pair, *, measure_now: bool, say: Say = lambda line: None, warn: Say = lambda line: None
) -> Calibration | None:
    """The stored calibration of this pair, or one measured now if that is wanted; None if there is neither."""
    if not pair.drafter.max_draft:
        return None
    found = stored(pair.key)
    if found is not None or not measure_now:
        return found
    return recalibrated(pair, say=say, warn=warn)


def recalibrated(
    pair: Pair, *, seconds: float = 4.0, say: Say = lambda line: None, warn: Say = lambda line: None
) -> Calibration:
    """Measure and store. A cache folder that cannot be written costs a warning, no more."""
    table = measure(pair, seconds=seconds, progress=lambda done: say(f"measuring this machine: {100 * done:.0f} %"))
    try:
        return keep(pair.key, table)
    except OSError as error:
        warn(f"mlx-dspark: the calibration was not kept and is measured again next time ({error})")
        return Calibration(table, "")


@dataclass
class Bench:
    """A pair under measurement, with the ids its contexts are made of."""

    pair: Pair
    ids: list[int]
    clock: Callable[[], float]
    deadline: float
    progress: Progress
    begun: float
    seen: float = 0.0

    @property
    def left(self) -> float:
        return self.deadline - self.clock()

    def report(self) -> None:
        share = (self.clock() - self.begun) / max(1e-9, self.deadline - self.begun)
        self.seen = max(self.seen, min(1.0, share))
        self.progress(self.seen)


def measure(
    pair: Pair,
    *,
    seconds: float = 4.0,
    depths: Sequence[int] = DEPTHS,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = lambda done: None,
) -> CostTable:
    """`seconds` bounds what is begun: the first depth is always measured, others if they fit."""
    begun = clock()
    source = pair.tokenizer.encode(TEXT)
    bench = Bench(pair, source, clock, begun + seconds, progress, begun)
    verify: dict[int, tuple[float, ...]] = {}
    draft: tuple[float, ...] = (0.0,)
    overhead, skipped, pace = 0.0, [], 0.0
    session = _Growing(bench)
    for depth in depths:
        reason = _too_much(bench, depth, depth - session.length, pace) if verify else None
        if depth + WIDTHS >= pair.config.max_positions and verify:
            reason = "beyond the model's context"
        if reason:
            skipped.append(f"{depth} tokens ({reason})")
            continue
        pace = session.grow(depth)
        repeats = REPEATS if not verify else FEWEST
        verify[depth] = _steps(bench, session, repeats)
        if len(verify) == 1:
            draft = _drafts(bench, session, repeats)
            overhead = _overhead(bench, session, depth)
    progress(1.0)
    note = f"not measured: {', '.join(skipped)}" if skipped else ""
    return CostTable(verify, draft, _lookup(bench), overhead, note)


@dataclass
class _Growing:
    """A session whose context grows from depth to depth."""

    bench: Bench
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.session = self._made(1)

    @property
    def length(self) -> int:
        return int(self.session.row.length)

    def grow(self, depth: int) -> float:
        """Consume ids up to `depth`; returns seconds a token."""
        before, began = self.length, self.bench.clock()
        self.session.ids = list(islice(cycle(self.bench.ids), depth + 1))
        while self.session.row.length < depth:
            self.session.prefill_chunk()
            self.bench.report()
        return (self.bench.clock() - began) / max(1, self.length - before)

    def _made(self, count: int) -> Session:
        pair, ids = self.bench.pair, list(islice(cycle(self.bench.ids), count))
        return pair.plain_session(ids, GenerateOptions(max_tokens=1, max_draft=1))


def _too_much(bench: Bench, depth: int, more: int, pace: float) -> str | None:
    """Why a depth is left out, or None; `more` tokens at `pace` seconds each lead there."""
    pair = bench.pair
    if 2 * state_bytes(pair.config, depth, pair.target.dtype.size) > MEMORY_SHARE * machine_bytes():
        return "memory"
    return "time" if more * pace * 1.5 > bench.left else None


def _steps(bench: Bench, growing: _Growing, repeats: int) -> tuple[float, ...]:
    """Seconds of a target step by rows."""
    snapshot = growing.session.state.snapshot()
    times: list[list[float]] = [[] for _ in range(WIDTHS)]
    for repeat in range(repeats + 1):
        for rows in range(1, WIDTHS + 1):
            seconds = _step(bench, growing.session, snapshot, rows, repeat)
            if repeat:  # the first warms up
                times[rows - 1].append(seconds)
        bench.report()
        if repeat >= FEWEST and bench.left < 0:
            break
    growing.session.state.restore(snapshot)
    return tuple(_typical(found) for found in times)


def _step(bench: Bench, session: Session, snapshot: Snapshot, rows: int, repeat: int) -> float:
    """One target step from the snapshot on: verify, roll half of it back, show the drafter the rest."""
    target, drafter, state, at = bench.pair.target, bench.pair.drafter, session.state, session.position
    state.restore(snapshot)
    shown = drafter.copy_state(session.draft_state)
    mx.eval(state.arrays())
    ids = list(islice(cycle(bench.ids), at + repeat * WIDTHS, at + repeat * WIDTHS + rows))
    began, kept = bench.clock(), (rows + 1) // 2
    verified = target.verify(state, [mx.array(ids, mx.int32)], drafter.taps)
    mx.eval(mx.argmax(verified.logits, axis=-1))
    target.rollback(state, verified.trace, [kept])
    if rows > 1:
        drafter.observe(shown, ids[:kept], at, {layer: x[:kept] for layer, x in verified.taps.items()})
    mx.eval(state.arrays())
    return bench.clock() - began


def _drafts(bench: Bench, growing: _Growing, repeats: int) -> tuple[float, ...]:
    """Seconds of 0..max_draft drafts, margins read."""
    pair, session = bench.pair, growing.session
    most = min(pair.drafter.max_draft, 64)
    times: list[list[float]] = [[] for _ in range(most)]
    for repeat in range(repeats + 1):
        for count in range(1, most + 1):
            request = DraftRequest(session.draft_state, session.anchor, session.position, count, session.sampler.pick)
            began = bench.clock()
            (block,) = pair.drafter.propose([request])
            mx.eval(block.arrays())
            if block.confidence:
                block.confidence.read(len(block))
            if repeat:
                times[count - 1].append(bench.clock() - began)
        bench.report()
        if repeat >= FEWEST and bench.left < 0:
            break
    return (0.0, *(_typical(found) for found in times))


def _overhead(bench: Bench, growing: _Growing, depth: int) -> float:
    """Seconds by which a plain round exceeds a target step of one row; the two take turns."""
    pair = bench.pair
    rounds: list[float] = []
    steps: list[float] = []
    snapshot = growing.session.state.snapshot()
    options = GenerateOptions(max_tokens=REPEATS + 2)
    session = pair.plain_session(list(islice(cycle(bench.ids), depth + 1)), options)
    session.drafter, session.cap = pair.undrafted, FixedCap(0)
    session.prefill()
    while session.finish is None:
        began = bench.clock()
        run_round(pair.target, [session])
        rounds.append(bench.clock() - began)
        steps.append(_step(bench, growing.session, snapshot, 1, len(steps)))
        bench.report()
    growing.session.state.restore(snapshot)
    return max(0.0, min(rounds) - min(steps))


def _lookup(bench: Bench) -> float:
    """Seconds of copying from a context and adding to it."""
    lookup, times = Lookup(), []
    state = lookup.new_state()
    lookup.observe(state, list(islice(cycle(bench.ids), 256)), 0, {})
    for i in range(REPEATS):
        began = bench.clock()
        lookup.observe(state, [bench.ids[i % len(bench.ids)]], 256 + i, {})
        request = DraftRequest(
            state, bench.ids[(i + 1) % len(bench.ids)], 257 + i, WIDTHS - 1, lambda *_: mx.array([0])
        )
        mx.eval(lookup.propose([request])[0].tokens)
        times.append(bench.clock() - began)
    return _typical(times)


def _typical(times: Sequence[float]) -> float:
    """The median of the faster half; at least a nanosecond."""
    fast = sorted(times)[: max(1, (len(times) + 1) // 2)]
    return max(1e-9, statistics.median(fast))


def key_of(names: Key, *hashes: str) -> Key:
    """The key of a pair: `names` are its device, kernels, how it is held and versions."""
    return {"machine": machine(), **names, "checkpoints": list(hashes)}
