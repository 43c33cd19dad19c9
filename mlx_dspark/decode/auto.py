"""The cap that learns: each round, the number of drafts with the most expected tokens a second, none included.

Before drafting it chooses whom to ask for how many, from what recent blocks were worth, and whether to read the block
before the verify: then it keeps the part worth verifying, from the drafter's own margins; but reading costs time too,
so a block may be verified whole and read afterwards. All compare drafts expected to stand with their price, both in
plain steps (Leviathan et al., 2023; the schedule of the DSpark paper's Algorithm 1). Drafts that were not verified are
compared with what is decoded later, so a probe costs the drafter's time alone.

Losses are rationed: a purse of plain steps pays for every round that brings less than it costs, and gets a small
share of the time; what it cannot pay for, the drafts all failing, is not tried. So drafting costs at most
START + SHARE of the time, whatever the drafter does. Nothing here sees a token before it is decided about.

The account is settled as a round ends; what the round teaches is taken in while the next one's drafts are being made,
early enough to decide how many are verified. Parked rounds are not thought about; a plan stands while it fares well.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlx_dspark.decode.cap import Choice, Moment, Outcome
from mlx_dspark.decode.pace import Pace, Prices
from mlx_dspark.decode.survival import Echo, Survival
from mlx_dspark.models.drafter import DraftBlock

SHARE = 0.006
"""Share of the time that may be lost to drafts that fail, probes included."""
START, MOST = 10.0, 12.0
"""Plain steps in the purse at first, and at most."""
POOR, RICH = 0.006, 0.04
"""Share of the time that probes take while nothing pays: with an empty purse, and more with a full one."""
RECENT = 6
"""Blocks whose worth stands for the next one's, beside one of the usual kind."""
PROBE, FIRST_PROBE = 4, 40.0
"""Drafts of a probe; plain steps that count as gone by before the first round."""
WHOLE = 0.5
"""Share of the purse that a block verified unread may cost."""
QUIET = 128
"""Most parked rounds in a row that go by without a thought, none of them timed."""
FREE = 0.01
"""A drafter this cheap, in plain steps, is always asked."""
MARGIN, LONGER = 1.01, 0.98
"""Drafting must promise this much more than plain decoding; a longer block, which teaches more, may promise LONGER of
the best one if it can be cut."""
NOBODY = "", 0


@dataclass
class Source:
    """A drafter as the cap of one sequence sees it."""

    survival: Survival
    recent: deque[list[float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    echo: Echo | None = None
    blank: list[float] = field(default_factory=list)

    def outlook(self, prices: Prices, count: int, rate: float) -> tuple[list[float], list[float], list[float]]:
        """Per number of drafts asked for, 0..count: drafts expected to stand and what verifying costs, if each block is
        cut where the `rate` (tokens a plain step) says; and drafts expected to stand if it is verified whole.

        Means over recent blocks and a usual one.
        """
        shifts = self.survival.shifts(count)
        if len(self.blank) < count:
            self.blank = self.survival.odds([None] * count)
        blocks, exp = (*self.recent, self.blank), math.exp  # log-odds have bounds: no sigmoid can overflow
        share = 1 / len(blocks)
        rows = [(i, shifts[i - 1], share * prices.extra[i]) for i in range(1, count + 1)]
        gains, costs, whole = ([0.0] * (count + 1) for _ in range(3))
        for odds in blocks:
            standing, gain, best, kept, paid = share, 0.0, 0.0, 0.0, 0.0
            known = odds if len(odds) >= count else [*odds, *self.blank[len(odds) :]]
            for (i, shift, price), o in zip(rows, known, strict=False):
                standing /= 1 + exp(-o - shift)
                gain += standing
                worth = gain - rate * price
                if worth > best:
                    best, kept, paid = worth, gain, price
                gains[i] += kept
                costs[i] += paid
                whole[i] += gain
        return gains, costs, whole


@dataclass(frozen=True)
class Plan:
    """Drafts to ask of each source, what each promises (drafts that stand less all they cost), and the rate they are
    weighed at: tokens a plain step, at least 1. `whole` has the drafts expected to stand of sources not to be read."""

    reason: str
    asked: Mapping[str, int] = field(default_factory=dict)
    promise: Mapping[str, float] = field(default_factory=dict)
    whole: Mapping[str, float] = field(default_factory=dict)
    rate: float = 1.0
    dear: bool = False  # does it ask a drafter that costs something?
    most: int = 0
    needs: float = float("inf")  # what the purse needs for more


@dataclass(frozen=True)
class Offer:
    """`count` drafts of one source: tokens a plain step, drafts that stand less what they cost, and of drafts not to be
    read before the verify, how many are expected to stand; or what the purse `needs` for drafts that would pay."""

    reason: str = "parked"
    count: int = 0
    rate: float = 1.0
    promise: float = 0.0
    whole: float = 0.0
    needs: float = float("inf")


@dataclass
class Turn:
    """A round as the cap remembers it: `drafted` has whom it asked for how many, `blocks` what was read of that, and
    `unread` is a block that was verified whole."""

    now: Moment
    prices: Prices
    blocks: dict[str, tuple[DraftBlock, Echo]] = field(default_factory=dict)
    drafted: list[tuple[str, int]] = field(default_factory=list)
    unread: DraftBlock | None = None
    kept: int = 0
    predicted: float = 1.0
    outcome: Outcome | None = None

    def spent(self) -> float:
        """Plain steps that proposing took."""
        return sum(self.prices.of(source, count) for source, count in self.drafted)


class AutoCap:
    """One sequence's. `survivals` by source name, one at least; a name that is not among them counts as the first."""

    def __init__(self, pace: Pace, survivals: Mapping[str, Survival]):
        self._pace = pace
        self._sources = {name: Source(survival) for name, survival in survivals.items()}
        self._purse, self._idle = START, FIRST_PROBE
        self._turn = Turn(Moment(0, 0), pace.prices(0, 0))
        self._past: Turn | None = None  # the last round, not learnt from yet
        self._plan = self._standing = Plan("first token")
        self._basis = self._turn  # what the standing plan was made for
        self._news = False  # has a round gone otherwise since it was made?
        self._widest = 0  # most room so far
        self._asked, self._reason = 0, self._plan.reason
        self._open = False  # is a proposal not decided yet?
        self._quiet = 0  # parked rounds to go by
        self._untold = True  # has no drafter read the prompt yet?

    @property
    def choice(self) -> Choice:
        return Choice(self._asked, self._turn.kept, self._turn.predicted, self._reason)

    @property
    def resting(self) -> int:
        return self._quiet

    def ask(self, now: Moment) -> int:
        """Sets what each source will be asked for and returns the most of it."""
        if self._quiet and now.room > 0 and now.sharing == self._turn.now.sharing:
            return 0
        self._quiet, room = 0, max(0, now.room)
        self._widest = max(self._widest, room)
        self._turn = Turn(now, self._pace.prices(now.depth, self._widest, now.sharing))
        if not room:
            self._plan = Plan("first token" if self._reason == "first token" else "no room")
        elif self._pace.wants_plain:
            self._plan = Plan("reference")
        else:
            if not self._standing.dear or self._might_grow(room):
                self.learn()
            if self._outdated(room):
                self._make_plan(room)
            self._plan = self._standing if self._standing.dear else self._probing(room)
        self._asked, self._reason = self._plan.most, self._plan.reason
        return self._asked

    def wanted(self, source: str, best: DraftBlock) -> int:
        """As a Judge: a dearer drafter is asked only if it promises more than the block that is there."""
        asked = self._plan.asked.get(source, 0)
        return asked if not len(best) or self._plan.promise.get(source, 0.0) > self._worth(best) else 0

    def better(self, found: DraftBlock, best: DraftBlock) -> DraftBlock:
        if not len(best) or not len(found):
            return found if len(found) else best
        return found if self._worth(found) > self._worth(best) else best

    def trim(self, block: DraftBlock) -> DraftBlock:
        """Cut where the next draft's chance to stand no longer pays for its row, or the purse ends."""
        turn = self._turn
        if not len(block):
            return block
        if self._stays_whole(block):
            turn.unread, turn.drafted = block, [(block.source, len(block))]
            turn.kept, turn.predicted = self._part(block), 1 + self._plan.whole[block.source]
            return block.cut(turn.kept)
        source, echo = self._source(block.source), self._read(block, turn)
        afford, extra = self._purse - turn.spent(), turn.prices.extra
        best, standing, gain, rate = 0.0, 1.0, 0.0, self._plan.rate
        for i, chance in enumerate(source.survival.chances(echo.odds)):
            standing *= chance
            gain += standing
            price = extra[i + 1]
            if gain - rate * price > best and price <= afford:
                best, turn.kept, turn.predicted = gain - rate * price, i + 1, 1 + gain
        return block.cut(turn.kept)

    def observe(self, outcome: Outcome) -> None:
        """Settle the round's account, and keep it to learn from."""
        if self._quiet:
            self._quiet, self._idle, self._purse = self._quiet - 1, self._idle + 1, min(MOST, self._purse + SHARE)
            return
        self.learn()
        turn, kept = self._turn, outcome.kept
        turn.outcome = outcome
        if not turn.drafted and not self._open:
            self._purse, self._idle = min(MOST, self._purse + SHARE), self._idle + 1
            self._time(turn, outcome)
            self._quiet = self._quiet_for(turn.now.room)
            return
        self._past, self._open = turn, True
        spent = turn.spent()
        added = spent + turn.prices.extra[kept]
        self._purse = min(MOST, self._purse + SHARE * (1 + added) + len(outcome.tokens) - 1 - added)
        self._idle = self._idle + 1 if spent <= FREE else 0.0

    def learn(self) -> None:
        """Take in what the last round's tokens say of every open proposal, and plan anew if that is due."""
        turn, self._past = self._past, None
        if turn is None or turn.outcome is None:
            return
        if turn.unread is not None:
            self._read(turn.unread, turn)
        for name, (_, echo) in turn.blocks.items():
            self._source(name).echo = echo
        for source in self._sources.values():
            if source.echo:
                source.survival.learn(source.echo.hear(turn.outcome.tokens))
                self._news |= not self._as_hoped(turn, turn.outcome)
                if source.echo.over:
                    source.echo = None
        self._open = any(source.echo for source in self._sources.values())
        self._time(turn, turn.outcome)
        if self._news and self._turn.now.room > 0:
            before, plan = self._standing, self._make_plan(self._turn.now.room)
            self._plan = plan if self._plan is before else self._plan

    def _as_hoped(self, turn: Turn, outcome: Outcome) -> bool:
        """Did all there was room for go unread, at known prices, and bring what was expected? The plan stands."""
        full = turn.unread is not None and turn.kept >= turn.now.room
        return full and self._pace.trusted and len(outcome.tokens) >= turn.predicted

    def _stays_whole(self, block: DraftBlock) -> bool:
        """Is it planned to be verified unread, nothing was read to choose it, and the purse can pay for all of it?"""
        prices = self._turn.prices
        price = prices.of(block.source, len(block)) + prices.extra[self._part(block)]
        return block.source in self._plan.whole and not self._turn.blocks and price <= WHOLE * self._purse

    def _part(self, block: DraftBlock) -> int:
        """How much of it the plan wants: it may have learnt something since it asked."""
        return min(len(block), self._plan.asked.get(block.source, 0))

    def _time(self, turn: Turn, outcome: Outcome) -> None:
        """Tell the pace of a round of this sequence alone and of one kind, but not of its drafter's first: it reads the
        prompt."""
        now, dear = turn.now, [d for d in turn.drafted if turn.prices.of(*d) > FREE]
        first, self._untold = self._untold and bool(dear), self._untold and not dear
        if now.sharing == 1 and now.room and len(dear) <= 1 and not first:
            who, read = (dear[0], turn.unread is None) if dear else (NOBODY, False)
            self._pace.observe(now.depth, who, outcome.kept, outcome.seconds, read=read)

    def _outdated(self, room: int) -> bool:
        """Has the ground of the standing plan changed? Other prices can wait until drafts are on their way."""
        old, plan = self._basis, self._standing
        other = old.prices is not self._turn.prices
        self._news |= other
        afforded = plan.reason == "saving" and self._purse >= plan.needs
        return room > old.now.room or room < plan.most or afforded or (other and not plan.dear)

    def _might_grow(self, room: int) -> bool:
        """May more drafts be wanted than planned, for all that were verified stood?"""
        past = self._past.outcome if self._past else None
        return past is not None and self._standing.most < room and len(past.tokens) > past.kept

    def _make_plan(self, room: int) -> Plan:
        self._standing = self._planned(room)
        self._basis, self._news = self._turn, False
        return self._standing

    def _planned(self, room: int) -> Plan:
        """Each source's best number of drafts by its outlook."""
        offers = {name: self._offer(name, room) for name in self._sources}
        best = max(offers.values(), key=lambda o: o.rate)
        asked = {name: room if self._free(name, room) else offer.count for name, offer in offers.items()}
        promise = {name: offer.promise for name, offer in offers.items()}
        whole = {name: offer.whole for name, offer in offers.items() if offer.whole}
        dear = any(n and not self._free(name, n) for name, n in asked.items())
        return Plan(best.reason, asked, promise, whole, best.rate, dear, max(asked.values()), best.needs)

    def _offer(self, name: str, room: int) -> Offer:
        """The best one of a source: how many drafts, read or whole."""
        prices, before, source = self._turn.prices, self._standing.rate, self._sources[name]
        gains, costs, whole = source.outlook(prices, room, before)
        free, extra = self._free(name, room), prices.extra
        longer = LONGER if source.recent or not self._pace.trusted else 1.0
        look, afford = (0.0 if free else prices.read), (float("inf") if free else self._purse - extra[1])
        proposing, needs = prices.proposing(name, room), float("inf")
        count, uncut, most, rate_of_it = 0, False, MARGIN, 1.0
        for n in range(1, room + 1):
            price = proposing[n]
            rate, unread = (1 + gains[n]) / (1 + costs[n] + price + look), (1 + whole[n]) / (1 + extra[n] + price)
            read = free or rate >= unread
            best = rate if read else unread
            if best <= (most * longer if read and count else most):
                continue
            if price > afford:
                needs = min(needs, price + extra[1])
                continue
            count, uncut, most, rate_of_it = n, not read, max(most, best), best
        if not count:
            return Offer("parked" if needs == float("inf") else "saving", needs=needs)
        stand, paid = (whole[count], extra[count]) if uncut else (gains[count], costs[count] + look)
        promise = stand - before * (paid + proposing[count])
        return Offer("pays", count, rate_of_it, promise, stand if uncut else 0.0)

    def _free(self, name: str, drafts: int) -> bool:
        return self._turn.prices.of(name, drafts) <= FREE

    def _probing(self, room: int) -> Plan:
        """The standing plan, and one source that it leaves alone if the idle time's share pays for a probe."""
        plan, count, allowed = self._standing, min(PROBE, room), self._allowed(0)
        for name in self._sources:
            if self._turn.prices.of(name, count) <= allowed and not plan.asked.get(name):
                asked, promise = {**plan.asked, name: count}, {**plan.promise, name: float("inf")}
                return Plan("probe", asked, promise, {}, plan.rate, True, max(asked.values()))
        return plan

    def _allowed(self, later: int) -> float:
        """What a probe may cost, so many plain rounds from now."""
        purse, idle = min(MOST, self._purse + later * SHARE), self._idle + later
        return min((POOR + RICH * purse / MOST) * idle, purse)

    def _quiet_for(self, room: int) -> int:
        """Parked rounds to come that need no thought: no probe will be due, and the purse cannot pay for more yet."""
        plan, count = self._plan, min(PROBE, room)
        if plan.reason not in ("parked", "saving") or plan.most or not self._pace.trusted:
            return 0
        cheapest = min(self._turn.prices.of(name, count) for name in self._sources)
        saved = (plan.needs - self._purse) / SHARE if plan.reason == "saving" else QUIET
        return bisect_left(range(int(max(0.0, min(QUIET, saved)))), cheapest, key=self._allowed)

    def _read(self, block: DraftBlock, turn: Turn) -> Echo:
        """The block on the host, with odds; waits for it, once."""
        if block.source not in turn.blocks or turn.blocks[block.source][0] is not block:
            source = self._source(block.source)
            ids = block.ids()
            margins: Sequence[float | None] = block.confidence.read(len(ids)) if block.confidence else [None] * len(ids)
            odds = source.survival.odds(margins)
            if block.confidence:
                source.recent.append(odds)
            turn.blocks[block.source] = block, Echo(ids, odds)
            if block is not turn.unread:
                turn.drafted.append((block.source, len(ids)))
        return turn.blocks[block.source][1]

    def _source(self, name: str) -> Source:
        return self._sources.get(name) or next(iter(self._sources.values()))

    def _worth(self, block: DraftBlock) -> float:
        """Drafts expected to stand less what verifying them costs, at the best cut."""
        standing, gain, best = 1.0, 0.0, 0.0
        echo, extra = self._read(block, self._turn), self._turn.prices.extra
        for i, chance in enumerate(self._source(block.source).survival.chances(echo.odds)):
            standing *= chance
            gain += standing
            best = max(best, gain - self._plan.rate * extra[i + 1])
        return best
