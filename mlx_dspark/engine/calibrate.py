"""Measures what target steps and drafting cost for a loaded pair on this machine: a CostTable, in a few seconds.

Widths take turns within each repeat, so that a machine that slows down slows all of them; the fastest time of a width
counts, since others can only slow it down, and a wider step never counts as cheaper than a narrower one. Deep contexts
are measured where time and memory allow, and the table says what was left out.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlx_dspark.decode.cost import WIDTHS, CostTable
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.session import Session
from mlx_dspark.engine.calibration_store import Calibration, Key, keep, stored
from mlx_dspark.engine.memory import machine_bytes, state_bytes
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import DraftBlock, DraftRequest
from mlx_dspark.models.lookup import Lookup
from mlx_dspark.models.state import Snapshot

if TYPE_CHECKING:
    from mlx_dspark.engine.pair import Pair

Progress = Callable[[float], None]
"""Told the share that is done."""
Say = Callable[[str], None]

DEPTHS = (128, 2048, 8192)
TOLD = 3
"""Tokens a drafter is told of before it drafts: a round's few."""
FEWEST, MOST = 4, 40
"""Repeats of a measurement, after one that warms up."""
FIRST_SHARE, DEEP_SHARE = 0.3, 0.1
"""Share of the time allowed for the steps at the first depth, and for each other measurement."""
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

    def fastest(
        self, count: int, share: float, measured: Callable[[int, int], float], rising: bool = True
    ) -> tuple[float, ...]:
        """The fastest seconds of `measured(index, repeat)` for 0..count - 1, at least a nanosecond.

        Repeats until `share` of all the time is over; with `rising`, none is less than the one before it.
        """
        until, best = self.clock() + share * (self.deadline - self.begun), [float("inf")] * count
        for repeat in range(MOST + 1):
            for index in range(count):
                seconds = measured(index, repeat)
                best[index] = min(best[index], seconds) if repeat > 1 else seconds  # the first warms up
            self.report()
            if repeat >= FEWEST and self.clock() > until:
                break
        return tuple(max(1e-9, *(best[: i + 1] if rising else best[i : i + 1])) for i in range(count))

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
    overhead, read, skipped, pace = 0.0, 0.0, [], 0.0
    session = _Growing(bench)
    for depth in depths:
        reason = _too_much(bench, depth, depth - session.length, pace) if verify else None
        if depth + WIDTHS >= pair.config.max_positions and verify:
            reason = "beyond the model's context"
        if reason:
            skipped.append(f"{depth} tokens ({reason})")
            continue
        pace = session.grow(depth)
        verify[depth] = _steps(bench, session, FIRST_SHARE if not verify else DEEP_SHARE)
        if len(verify) == 1:
            draft, read = _drafts(bench, session)
            overhead = _overhead(bench, session, depth)
    lookup = _lookup(bench)
    progress(1.0)
    note = f"not measured: {', '.join(skipped)}" if skipped else ""
    return CostTable(verify, draft, lookup, overhead, note, read)


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


def _steps(bench: Bench, growing: _Growing, share: float) -> tuple[float, ...]:
    """Seconds of a target step by rows."""
    session, snapshot = growing.session, growing.session.state.snapshot()
    found = bench.fastest(WIDTHS, share, lambda width, repeat: _step(bench, session, snapshot, width + 1, repeat))
    session.state.restore(snapshot)
    return found


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


def _drafts(bench: Bench, growing: _Growing) -> tuple[tuple[float, ...], float]:
    """Seconds of 0..max_draft drafts by a drafter that is told of the latest tokens first, and of reading them: what a
    block and its verify take one after the other, less what they take in one go."""
    target, drafter, session = bench.pair.target, bench.pair.drafter, growing.session
    most, snapshot, at = min(drafter.max_draft, 64), session.state.snapshot(), session.position
    if not most:
        return (0.0,), 0.0
    ids = list(islice(cycle(bench.ids), at, at + TOLD + 1))
    taps = target.verify(session.state, [mx.array(ids[:-1], mx.int32)], drafter.taps).taps

    def prepared() -> Any:
        """A drafter's state to go on from, the target's restored."""
        session.state.restore(snapshot)
        mx.eval(session.state.arrays(), list(taps.values()))
        return drafter.copy_state(session.draft_state)

    def draft(state: Any, count: int) -> DraftBlock:
        drafter.observe(state, ids[:-1], at, taps)
        request = DraftRequest(state, ids[-1], at + TOLD, count, session.sampler.pick, greedy=True)
        return drafter.propose([request])[0]

    def alone(index: int, repeat: int) -> float:
        state, began = prepared(), bench.clock()
        _read(draft(state, index + 1))
        return bench.clock() - began

    def both(index: int, repeat: int) -> float:
        state, began = prepared(), bench.clock()
        block = draft(state, most)
        if index:
            _read(block)
        mx.async_eval(block.tokens)  # type: ignore[no-untyped-call]
        rows = mx.concatenate([mx.array(ids[-1:], mx.int32), block.tokens.astype(mx.int32)])
        mx.eval(mx.argmax(target.verify(session.state, [rows], drafter.taps).logits, axis=-1))
        return bench.clock() - began

    apart = bench.fastest(most, DEEP_SHARE, alone)
    in_one, in_two = bench.fastest(2, DEEP_SHARE, both, rising=False)
    session.state.restore(snapshot)
    read = max(0.0, in_two - in_one)
    return (0.0, *(max(1e-9, seconds - read) for seconds in apart)), read


def _read(block: DraftBlock) -> None:
    """As a cap policy does before the verify."""
    block.ids()
    if block.confidence:
        block.confidence.read(len(block))


def _overhead(bench: Bench, growing: _Growing, depth: int) -> float:
    """Seconds by which a plain round exceeds a target step of one row; the two take turns."""
    pair, session = bench.pair, growing.session
    snapshot = session.state.snapshot()
    plain = pair.plain_session(list(islice(cycle(bench.ids), depth + 1)), GenerateOptions(max_tokens=MOST + 2))
    plain.drafter, plain.stops.eos_ids = pair.undrafted, frozenset()
    plain.prefill()

    def turn(index: int, repeat: int) -> float:
        if index:
            return _step(bench, session, snapshot, 1, repeat)
        began = bench.clock()
        run_round(pair.target, [plain])
        return bench.clock() - began

    plain_round, step = bench.fastest(2, DEEP_SHARE, turn, rising=False)
    session.state.restore(snapshot)
    return max(0.0, plain_round - step)


def _lookup(bench: Bench) -> float:
    """Seconds of copying from a context and adding to it."""
    lookup, ids = Lookup(), bench.ids
    state = lookup.new_state()
    lookup.observe(state, list(islice(cycle(ids), 256)), 0, {})

    def copy(index: int, repeat: int) -> float:
        began, at = bench.clock(), 256 + repeat
        lookup.observe(state, [ids[at % len(ids)]], at, {})
        request = DraftRequest(state, ids[(at + 1) % len(ids)], at + 1, WIDTHS - 1, lambda *_: mx.array([0]))
        mx.eval(lookup.propose([request])[0].tokens)
        return bench.clock() - began

    return bench.fastest(1, DEEP_SHARE, copy)[0]


def key_of(names: Key, *hashes: str) -> Key:
    """The key of a pair: `names` are its device, kernels, how it is held and versions."""
    return {"machine": machine(), **names, "checkpoints": list(hashes)}
