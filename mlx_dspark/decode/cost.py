"""What a round's parts cost on one machine: seconds of a target step by rows and depth, of drafting, of the rest.

Pure arithmetic over measured numbers: no arrays, no clock, no files. engine/calibrate.py measures one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_dspark.errors import CalibrationError

WIDTHS = 8
"""Rows a verify is measured at: 1..WIDTHS."""


@dataclass(frozen=True)
class CostTable:
    """Seconds. `verify[depth][rows - 1]`: a target step (verify, rollback, observe) of 1..8 rows after `depth` tokens.

    `draft[n]`: what proposing n drafts adds to a round beside its wider step (one entry: it drafts nothing), without a
    look at them; `read`: what a look costs; `lookup`: a copy from the context; `overhead`: the rest of a plain round.
    `note` says what the measurement left out.
    """

    verify: Mapping[int, tuple[float, ...]]
    draft: tuple[float, ...] = (0.0,)
    lookup: float = 0.0
    overhead: float = 0.0
    note: str = ""
    read: float = 0.0

    def __post_init__(self) -> None:
        if not self.verify:
            raise _error("verify", self.verify, "measured at one depth at least")
        for depth, times in self.verify.items():
            if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
                raise _error("a depth", depth, "a number of tokens, 0 or more")
            _check(f"verify at depth {depth}", times, low=True)
        _check("draft", self.draft)
        _check("lookup", [self.lookup])
        _check("read", [self.read])
        _check("overhead", [self.overhead])

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted(self.verify))

    @property
    def max_draft(self) -> int:
        """Drafts the drafter was measured up to."""
        return len(self.draft) - 1

    def verify_time(self, rows: int, depth: int) -> float:
        """A target step of `rows` rows at `depth`.

        Between depths and beyond the last one by straight lines (never falling beyond), below the first one flat;
        beyond the measured rows by the mean cost of one more row.
        """
        depths = self.depths
        right = min(bisect_left(depths, depth), len(depths) - 1)
        if right == 0 or depth <= depths[0]:
            return self._at(depths[0], rows)
        near, far = depths[right - 1], depths[right]
        a, b = self._at(near, rows), self._at(far, rows)
        if depth > far:
            return b + max(0.0, b - a) * (depth - far) / (far - near)
        share = (depth - near) / (far - near)
        return a * (1 - share) + b * share

    def draft_time(self, drafts: int) -> float:
        """What proposing `drafts` drafts adds; beyond the measured ones by the mean cost of one more draft."""
        return _extended(self.draft, drafts)

    def plain_time(self, depth: int) -> float:
        """A whole round without drafts."""
        return self.verify_time(1, depth) + self.overhead

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads; JSON's own types alone."""
        return {
            "verify": {str(depth): list(self.verify[depth]) for depth in self.depths},
            "draft": list(self.draft),
            "lookup": self.lookup,
            "overhead": self.overhead,
            "read": self.read,
            "note": self.note,
        }

    @classmethod
    def from_json(cls, value: Any) -> CostTable:
        """Raises CalibrationError for anything that `to_json` could not have made."""
        if not isinstance(value, dict) or not isinstance(value.get("verify"), dict):
            raise _error("a cost table", value, "an object with verify, draft, lookup, overhead and note")
        verify = {}
        for depth, times in value["verify"].items():
            if not (isinstance(depth, str) and depth.isascii() and depth.isdigit()):
                raise _error("a depth", depth, "a number of tokens, 0 or more")
            verify[int(depth)] = _tuple(f"verify at depth {depth}", times)
        note = value.get("note", "")
        if not isinstance(note, str):
            raise _error("note", note, "a text")
        draft = _tuple("draft", value.get("draft"))
        lookup, overhead, read = (value.get(name, 0.0) for name in ("lookup", "overhead", "read"))
        return cls(verify, draft, lookup, overhead, note, read)

    def describe(self) -> list[tuple[str, str]]:
        """(what, milliseconds in words), for people."""
        lines = [
            (f"target step after {d} tokens, 1-{len(self.verify[d])} rows", _ms(self.verify[d])) for d in self.depths
        ]
        if self.max_draft:
            lines.append((f"drafter, 1-{self.max_draft} drafts", _ms(self.draft[1:])))
            lines.append(("reading drafts before the verify", _ms([self.read])))
        lines += [("lookup", _ms([self.lookup])), ("rest of a round", _ms([self.overhead]))]
        return [*lines, ("note", self.note)] if self.note else lines

    def _at(self, depth: int, rows: int) -> float:
        return _extended(self.verify[depth], rows - 1)


def _extended(values: Sequence[float], index: int) -> float:
    """values[index], going on from the end by the mean step, which is never taken as falling."""
    last = len(values) - 1
    if index <= last:
        return values[max(0, index)]
    slope = max(0.0, (values[last] - values[0]) / last) if last else 0.0
    return values[last] + slope * (index - last)


def _tuple(what: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise _error(what, values, "a list of seconds")
    return tuple(values)


def _check(what: str, values: Sequence[Any], low: bool = False) -> None:
    if not 1 <= len(values) <= 1024:
        raise _error(what, values, "1 to 1024 numbers of seconds")
    for value in values:
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not good or value < 0 or (low and value == 0) or value > 3600:
            raise _error(what, value, f"seconds, {'more than' if low else 'at least'} 0 and at most 3600")


def _error(what: str, value: Any, limit: str) -> CalibrationError:
    return CalibrationError(
        f"{what} is {str(value)[:80]!r}, but it must be {limit}; the file was damaged or is not a calibration: "
        "measure anew with mlx-dspark calibrate"
    )


def _ms(seconds: Sequence[float]) -> str:
    return " ".join(f"{1000 * s:.{3 if s < 0.001 else 2 if s < 0.1 else 0}f}" for s in seconds) + " ms"
