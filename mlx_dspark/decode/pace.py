"""A cost table in use: what drafting costs beside a plain step, corrected by the rounds that are measured.

Costs are in plain steps, so that a machine that slows down as a whole changes nothing. Pure arithmetic; shared by all
sequences of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_dspark.decode.cost import CostTable

GRAIN = 64
"""Depths within this many tokens are priced alike."""
REFERENCE = 32
"""Drafted rounds after which an untrusted table wants a plain one to compare with."""
NARROW, WIDE = (0.7, 2.0), (0.05, 20.0)
"""How far measured rounds may move the price of drafting: of a table measured here, and of a guess."""
KNOWN, GUESSED = (0.995, 3.0), (0.95, 0.01)
"""What a measured round still weighs after the next one, and the weight, in rounds that draft for a plain step's time,
of the belief that a table's proportions are right: of one measured here, and of a guess."""

GUESS = CostTable(
    {0: tuple(1 + 0.4 * rows for rows in range(8))}, (0.0, *(0.5 + 0.05 * n for n in range(1, 9))), 0.001, 0.05
)
"""Where nothing was measured: in plain steps, and on the dear side."""


@dataclass(frozen=True)
class Prices:
    """In plain steps: `extra[v]` is what verifying v drafts adds, `draft[n]` what proposing n of them does, `read` what
    reading them before the verify does."""

    extra: Sequence[float]
    draft: Sequence[float]
    lookup: float
    read: float

    def of(self, source: str, drafts: int) -> float:
        """Proposing `drafts` drafts of `source`."""
        return self.lookup if source == "lookup" and drafts else self.draft[min(drafts, len(self.draft) - 1)]

    def proposing(self, source: str, most: int) -> Sequence[float]:
        """`of` for 0..most drafts."""
        if source != "lookup" and most < len(self.draft):
            return self.draft
        return [self.of(source, n) for n in range(most + 1)]


class Fit:
    """Rounds' times as speed * (1 + strain * added), where `added` is what drafting costs by the table: least squares
    that forget, with a ridge that holds the strain at 1. So a machine that is slow as a whole is not taken for one
    where drafting is dear, as long as nothing shows it."""

    def __init__(self, lasting: float, firm: float):
        self._lasting, self._firm = lasting, firm
        self._aa = self._ab = self._bb = self._ay = self._by = 0.0
        self.speed: float | None = None
        self.strain = 1.0

    def learn(self, added: float, measured: float) -> None:
        """One round; a time counts as at most twice or half of what was expected."""
        if self.speed is not None:
            expected = self.speed * (1 + self.strain * added)
            measured = max(expected / 2, min(expected * 2, measured))
        a, b, keep = 1 + added, added, self._lasting
        self._aa, self._ab, self._bb = keep * self._aa + a * a, keep * self._ab + a * b, keep * self._bb + b * b
        self._ay, self._by = keep * self._ay + a * measured, keep * self._by + b * measured
        bb = self._bb + self._firm
        det = self._aa * bb - self._ab * self._ab
        speed = self.speed = (bb * self._ay - self._ab * self._by) / det
        self.strain = 1 + (self._aa * self._by - self._ab * self._ay) / (det * speed)


class Pace:
    """`trusted`: the table was measured on this machine, so that single rounds move it little."""

    def __init__(self, table: CostTable, *, trusted: bool = True):
        self.table, self.trusted = table, trusted
        self._fit = Fit(*(KNOWN if trusted else GUESSED))
        self._since_plain = REFERENCE
        self._known: dict[tuple[int, int, int], tuple[float, Prices]] = {}
        self._scaled: dict[tuple[int, int, int], Prices] = {}
        self._scale = 1.0  # the strain, rounded: prices are made anew when it moves

    @property
    def wants_plain(self) -> bool:
        """Is a plain round due, to compare with?"""
        return not self.trusted and self._since_plain >= REFERENCE

    def prices(self, depth: int, drafts: int, sharing: int = 1) -> Prices:
        """For a sequence at `depth`, one of `sharing` that all do alike, and 0..drafts drafts."""
        key = (depth // GRAIN, drafts, sharing)
        found = self._scaled.get(key)
        if found is None:
            if len(self._scaled) > 512:
                self._scaled.clear()
            k, (_, known) = self._scale, self._base(depth, drafts, sharing)
            found = Prices([k * e for e in known.extra], [k * d for d in known.draft], k * known.lookup, k * known.read)
            self._scaled[key] = found
        return found

    def observe(self, depth: int, drafted: tuple[str, int], kept: int, seconds: float, read: bool = False) -> None:
        """A round of one sequence: who drafted how many, how many were verified, were they read before that."""
        plain, known = self._base(depth, max(kept, drafted[1]), 1)
        measured, added = seconds / plain, known.of(*drafted) + known.extra[kept] + read * known.read
        self._since_plain = 0 if added <= 0.02 else self._since_plain + 1
        if self._fit.speed is None and added > 0.02 and not self.trusted:
            return
        self._fit.learn(added, measured)
        low, high = NARROW if self.trusted else WIDE
        strain = max(low, min(high, self._fit.strain))
        if abs(strain - self._scale) > 0.01 * self._scale:
            self._scale = strain
            self._scaled.clear()

    def _base(self, depth: int, drafts: int, sharing: int) -> tuple[float, Prices]:
        """A plain round's seconds by the table, and its prices without correction."""
        key = (depth // GRAIN, drafts, sharing)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > 512:
                self._known.clear()
            t, depth = self.table, key[0] * GRAIN
            step = [(t.verify_time((1 + v) * sharing, depth) + t.overhead) / sharing for v in range(drafts + 1)]
            plain = step[0]
            extra, dearest = [], 0.0
            for seconds in step:
                dearest = max(dearest, seconds / plain - 1)
                extra.append(dearest)
            draft = [t.draft_time(n) / plain for n in range(drafts + 1)]
            found = self._known[key] = plain, Prices(extra, draft, t.lookup / plain, t.read / plain)
        return found
