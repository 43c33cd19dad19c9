"""Measures what target steps and drafting cost for a loaded pair on this machine: a CostTable, in a few seconds.

Target steps by themselves, at their fastest, since others can only slow them down; drafting in whole rounds, at their
median. Widths take turns within each repeat, so that a machine that slows down slows all of them, and a wider one never
counts as cheaper. Deep contexts are measured where time and memory allow, and the table says what was left out.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, islice
from statistics import median
from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_dspark.decode.cap import FixedCap
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
SPAN = 96
"""Tokens that measured rounds go on for before they begin again."""
FEWEST, MOST = 4, 40
"""Repeats of a measurement, after one that warms up."""
FIRST_SHARE, DEEP_SHARE = 0.3, 0.1
"""Share of the time allowed for steps and for drafted rounds at the first depth, and for each other measurement."""
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

    def times(self, count: int, share: float, measured: Callable[[int, int], float]) -> list[list[float]]:
        """Seconds of `measured(index, repeat)` for 0..count - 1, of each repeat after one that warms up.

        Repeats until `share` of all the time is over.
        """
        until, found = self.clock() + share * (self.deadline - self.begun), [list[float]() for _ in range(count)]
        for repeat in range(MOST + 1):
            for index in range(count):
                seconds = max(1e-9, measured(index, repeat))
                if repeat:
                    found[index].append(seconds)
            self.report()
            if repeat >= FEWEST and self.clock() > until:
                break
        return found

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
            rounds, read = _rounds(bench, session)
            overhead = max(0.0, _plain(bench, session) - verify[depth][0])
            draft = _drafting(rounds, verify[depth], overhead)
    lookup = _lookup(bench)
    progress(1.0)
    note = f"not measured: {', '.join(skipped)}" if skipped else ""
    return CostTable(verify, draft, lookup, overhead, note, read)


def _drafting(rounds: Sequence[float], steps: Sequence[float], overhead: float) -> tuple[float, ...]:
    """Seconds that proposing 0.. drafts adds to a round of a target step and the rest, never falling; the rounds are of
    1.. drafts, the steps of 1.. rows."""
    added = (max(1e-9, r - s - overhead) for r, s in zip(rounds, steps[1:], strict=False))
    return (0.0, *accumulate(added, max))


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
    times = bench.times(WIDTHS, share, lambda width, repeat: _step(bench, session, snapshot, width + 1, repeat))
    session.state.restore(snapshot)
    return tuple(accumulate(map(min, times), max))


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


class _Asking(FixedCap):
    """Asks for that many drafts, of lookup only if there is no other drafter, and may look at them first."""

    def __init__(self, drafts: int, looks: bool = False):
        super().__init__(drafts)
        self.looks = looks

    def wanted(self, source: str, best: DraftBlock) -> int:
        return 0 if source == "lookup" else self.drafts

    def trim(self, block: DraftBlock) -> DraftBlock:
        if self.looks and len(block):
            block.ids()
            if block.confidence:
                block.confidence.read(len(block))
        return super().trim(block)


def _rounds(bench: Bench, growing: _Growing) -> tuple[tuple[float, ...], float]:
    """Seconds of whole rounds that verify 1..max_draft drafts, and what a look at the drafts adds.

    Whole, since a round's parts overlap and share caches: one by one they do not tell what they cost together. A round
    pays for the rollback of the one before, so a plain one follows the longest and each other follows the next shorter.
    """
    most = min(bench.pair.drafter.max_draft, WIDTHS - 1)
    if not most:
        return (), 0.0
    caps = [*(_Asking(n) for n in range(most + 1)), _Asking(most, looks=True)]
    _, *rounds, looked = _round_times(bench, growing, caps, FIRST_SHARE)
    return tuple(accumulate(rounds, max)), max(0.0, looked - rounds[-1])


def _plain(bench: Bench, growing: _Growing) -> float:
    """Seconds of a plain round among plain rounds."""
    return _round_times(bench, growing, [_Asking(0)], DEEP_SHARE)[0]


def _round_times(bench: Bench, growing: _Growing, caps: Sequence[_Asking], share: float) -> list[float]:
    """Median seconds of a round under each cap; the caps take turns in sessions that begin where `growing` is."""
    pair, ids, sessions = bench.pair, growing.session.ids, list[Session]()
    options = GenerateOptions(max_tokens=SPAN + 2 * WIDTHS, max_draft=caps[-1].drafts)
    snapshot = growing.session.state.snapshot()

    def begun() -> Session:
        """With a drafter that is up to date."""
        session = pair.plain_session(ids, options)
        session.stops.eos_ids = frozenset()
        session.resume(snapshot, growing.session.draft_state)
        for session.cap in (FixedCap(0), caps[-1]):
            run_round(pair.target, [session])
        return session

    def turn(index: int, repeat: int) -> float:
        if not sessions or sessions[0].finish or sessions[0].stops.count >= SPAN:
            sessions[:] = [begun()]
        sessions[0].cap, start = caps[index], bench.clock()
        run_round(pair.target, sessions)
        return bench.clock() - start

    return [median(seconds) for seconds in bench.times(len(caps), share, turn)]


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

    return min(bench.times(1, DEEP_SHARE, copy)[0])


def key_of(names: Key, *hashes: str) -> Key:
    """The key of a pair: `names` are its device, kernels, how it is held and versions."""
    return {"machine": machine(), **names, "checkpoints": list(hashes)}
