"""Runs -> cells and totals: medians over trials of ratios within a trial. Pure arithmetic.

Only complete trials count: every arm has answered every prompt of the kind. A cell with a faulty run has no speed, and
nothing compares itself with a plain cell that has none.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from mlx_dspark.benchmark.arms import AUTO, PLAIN, Arm
from mlx_dspark.benchmark.report import Cell, RunLine, Shares, Spread, Total
from mlx_dspark.benchmark.run import REHEARSAL, Run
from mlx_dspark.benchmark.verdict import Fault

DRAFT_PHASES = ("draft", "observe")


class Summary:
    """Runs sorted by arm, kind and trial; `plan` has the prompts of each kind."""

    def __init__(self, runs: Sequence[Run], faults: Sequence[Fault], arms: Sequence[Arm], plan: dict[str, int]):
        self.arms, self.plan, self.faults = list(arms), plan, list(faults)
        self._runs: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
        for run in runs:
            self._runs[run.arm, run.kind, run.trial].append(run)
        self._faulty = Counter((fault.arm, fault.kind) for fault in faults)

    def trials(self, kind: str) -> list[int]:
        """Timed trials in which every arm answered every prompt of the kind."""
        numbers = sorted({trial for _, k, trial in self._runs if k == kind and trial != REHEARSAL})
        return [
            n for n in numbers if all(len(self._runs.get((a.name, kind, n), ())) == self.plan[kind] for a in self.arms)
        ]

    def cells(self) -> tuple[Cell, ...]:
        return tuple(self._cell(arm, kind) for kind in self.plan for arm in self.arms)

    def totals(self, cells: Sequence[Cell]) -> tuple[Total, ...]:
        return tuple(
            Total(arm.name, arm.mode, arm.cap_name, self._total(arm), self._of_best(arm, cells))
            for arm in self.arms
            if arm.name != PLAIN
        )

    def good(self, arm: str, kind: str) -> bool:
        return not self._faulty[arm, kind]

    def _timed(self, arm: str, kind: str, trial: int) -> list[Run]:
        return self._runs[arm, kind, trial]

    def _cell(self, arm: Arm, kind: str) -> Cell:
        trials, good = self.trials(kind), self.good(arm.name, kind)
        groups = [self._timed(arm.name, kind, n) for n in trials]
        runs = [run for group in groups for run in group]
        rounds, proposed, accepted, drafts = _counts(runs)
        timed = groups if good else []
        return Cell(
            arm=arm.name,
            mode=arm.mode,
            cap=arm.cap_name,
            kind=kind,
            tokens_per_second=spread(_rate(sum(r.decoded for r in g), _decode(g)) for g in timed),
            end_to_end_tokens_per_second=spread(
                _rate(sum(len(r.tokens) for r in g), _decode(g) + _prefill(g)) for g in timed
            ),
            prefill_tokens_per_second=spread(_rate(sum(r.prompt_tokens for r in g), _prefill(g)) for g in timed),
            speedup=spread(self._ratio(arm.name, [kind], n) for n in trials) if self._comparable(arm, kind) else None,
            accept_length=sum(r.decoded for r in runs) / rounds if rounds else 0.0,
            accepted_at_position=tuple(a / p for a, p in zip(accepted, proposed, strict=True)),
            drafts=drafts,
            reasons=dict(sum((Counter(run.reasons) for run in runs), Counter[str]())),
            shares=_shares(self._runs.get((arm.name, kind, REHEARSAL), ())),
            peak_memory_bytes=max((r.peak_memory_bytes for r in runs), default=0),
            tokens=sum(len(r.tokens) for r in runs),
            faults=self._faulty[arm.name, kind],
        )

    def _comparable(self, arm: Arm, kind: str) -> bool:
        return arm.name != PLAIN and self.good(arm.name, kind) and self.good(PLAIN, kind)

    def _ratio(self, arm: str, kinds: Iterable[str], trial: int) -> float | None:
        """Plain seconds over the arm's, for the same tokens."""
        plain = mine = 0.0
        for kind in kinds:
            plain += _decode(self._timed(PLAIN, kind, trial))
            mine += _decode(self._timed(arm, kind, trial))
        return _rate(plain, mine)

    def _total(self, arm: Arm) -> Spread | None:
        if not all(self._comparable(arm, kind) for kind in self.plan):
            return None
        every = set.intersection(*(set(self.trials(kind)) for kind in self.plan)) if self.plan else set()
        return spread(self._ratio(arm.name, self.plan, n) for n in sorted(every))

    def _of_best(self, arm: Arm, cells: Sequence[Cell]) -> dict[str, float]:
        """The automatic cap's speed over the best fixed one's, a kind: median of ratios within a trial."""
        if arm.cap_name != AUTO:
            return {}
        found = {}
        for kind in self.plan:
            best = best_fixed([c for c in cells if c.kind == kind and c.mode == arm.mode])
            if best and self._comparable(arm, kind):
                ratios = (
                    _rate(_decode(self._timed(best.arm, kind, n)), _decode(self._timed(arm.name, kind, n)))
                    for n in self.trials(kind)
                )
                middle = spread(ratios)
                if middle:
                    found[kind] = middle.median
        return found


def best_fixed(cells: Iterable[Cell]) -> Cell | None:
    """The fixed cap with the best median speedup; None where no fixed cap has one."""
    fixed = [cell for cell in cells if cell.cap != AUTO and cell.speedup]
    return max(fixed, key=lambda cell: cell.speedup.median if cell.speedup else 0.0, default=None)


def automatic(cells: Iterable[Cell]) -> Cell | None:
    """The first automatic cap that has a speedup."""
    return next((cell for cell in cells if cell.cap == AUTO and cell.speedup), None)


def run_lines(runs: Sequence[Run], faults: Sequence[Fault]) -> tuple[RunLine, ...]:
    named = {(f.arm, f.kind, f.prompt, f.trial): f.what for f in faults}
    return tuple(
        RunLine(
            arm=run.arm,
            kind=run.kind,
            prompt=run.prompt,
            trial=run.trial,
            tokens=len(run.tokens),
            digest=run.digest,
            prompt_tokens=run.prompt_tokens,
            rounds=run.rounds,
            prefill_seconds=run.prefill_seconds,
            decode_seconds=run.decode_seconds,
            fault=named.get((run.arm, run.kind, run.prompt, run.trial)),
        )
        for run in runs
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and most; None of nothing, or where one value is missing."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return None
    return Spread(statistics.median(known), min(known), max(known))


def _counts(runs: Sequence[Run]) -> tuple[int, list[int], list[int], dict[int, int]]:
    """Rounds, drafts proposed and kept by position, rounds by number of drafts; all summed."""
    width = max((len(run.proposed_at) for run in runs), default=0)
    proposed, accepted, drafts = [0] * width, [0] * width, Counter[int]()
    for run in runs:
        for i, (p, a) in enumerate(zip(run.proposed_at, run.accepted_at, strict=True)):
            proposed[i] += p
            accepted[i] += a
        drafts.update(run.drafts)
    return sum(run.rounds for run in runs), proposed, accepted, dict(sorted(drafts.items()))


def _shares(runs: Sequence[Run]) -> Shares | None:
    """Where the rehearsal's time went; what no phase saw is `other` too."""
    total = _decode(runs)
    if not total:
        return None
    phases: Counter[str] = Counter()
    for run in runs:
        phases.update(run.phases)
    draft = sum(phases[name] for name in DRAFT_PHASES) / total
    verify, rollback = phases["verify"] / total, phases["rollback"] / total
    return Shares(draft, verify, rollback, max(0.0, 1 - draft - verify - rollback))


def _decode(runs: Iterable[Run]) -> float:
    return sum(run.decode_seconds for run in runs)


def _prefill(runs: Iterable[Run]) -> float:
    return sum(run.prefill_seconds for run in runs)


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds and count else None
