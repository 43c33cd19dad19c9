"""One sequence: its ids, its State row, its drafter's state, its sampler and its stop rules.

The last id is the anchor: committed, not yet consumed. Knows no model family and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.decode.cap import CapPolicy, Moment
from mlx_dspark.decode.sampling import Sampler
from mlx_dspark.decode.text import Detokenizer, StopMatcher
from mlx_dspark.errors import PromptError
from mlx_dspark.models.drafter import Drafter, DraftRequest
from mlx_dspark.models.state import Row, Snapshot, State
from mlx_dspark.models.target import Target

PREFILL_CHUNK = 256
SLACK = 64
"""Rows kept beyond a drafter's context, so that they are dropped many at a time."""
FRESH = 32
"""Rows a drafter has seen at least when it is asked again after it has rested."""
Rows = tuple[Mapping[int, mx.array], int, int]
"""Taps of a whole round, and which rows of them are one sequence's: the first, and how many."""


@dataclass(frozen=True)
class Committed:
    """What a round may keep: tokens up to the first stop, each one's text, and why the sequence ends, if it does."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    finish: str | None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class StopRules:
    """Ends a sequence at an eos token, at a completed stop string or at a number of tokens, token by token."""

    eos_ids: frozenset[int]
    max_tokens: int
    detokenizer: Detokenizer
    matcher: StopMatcher
    count: int = 0

    def feed(self, tokens: Sequence[int]) -> Committed:
        """The eos token counts as a token and adds no text; nothing after a stop is kept, counted or shown."""
        pieces: list[str] = []
        for index, token in enumerate(tokens):
            self.count += 1
            piece, finish = "", None
            if token in self.eos_ids:
                finish = "stop"
            else:
                piece, stopped = self.matcher.push(self.detokenizer.push(token))
                if stopped:
                    return Committed(tuple(tokens[: index + 1]), (*pieces, piece), "stop")
            if finish is None and self.count >= self.max_tokens:
                finish = "length"
            if finish:
                return Committed(tuple(tokens[: index + 1]), (*pieces, piece + self.matcher.flush()), finish)
            pieces.append(piece)
        return Committed(tuple(tokens), tuple(pieces), None)

    @property
    def left(self) -> int:
        return self.max_tokens - self.count


@dataclass(eq=False)
class Session:
    """A sequence being decoded. `state` has one row, which a round may share into a batch."""

    target: Target
    drafter: Drafter
    sampler: Sampler
    stops: StopRules
    cap: CapPolicy
    ids: list[int]
    state: State = field(init=False)
    draft_state: object = field(init=False)
    finish: str | None = None
    top_logprobs: int | None = None  # alternatives to report with each token's log-probability; None reports neither
    _unseen: deque[Rows] = field(default_factory=deque)  # taps the drafter was not shown yet
    _held: int = 0  # rows in them
    _seen: int = 0  # tokens the drafter was told of

    def __post_init__(self) -> None:
        if not self.ids:
            raise PromptError("the prompt has no token; give at least one word")
        self.state = self.target.new_state()
        self.draft_state = self.drafter.new_state()

    @property
    def row(self) -> Row:
        return self.state.rows[0]

    @property
    def anchor(self) -> int:
        return self.ids[-1]

    @property
    def position(self) -> int:
        """The anchor's absolute position, which is also how many tokens the State has consumed."""
        return len(self.ids) - 1

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers to tap in this round, after `draft_request`: none while the drafter rests for long."""
        return self.drafter.taps if self.cap.resting <= FRESH else ()

    def draft_request(self, sharing: int = 1) -> DraftRequest:
        """The next round's, one of `sharing` in it; its drafter is up to date if it is asked for anything.

        Never asks for more than could still be emitted beside the bonus, nor for anything in the first round: that
        turns the prompt's last token into the first anchor, as drafters are trained for.
        """
        room = self.stops.left - 1 if self.stops.count else 0
        room = max(0, min(room, self.drafter.max_draft))
        count = max(0, min(self.cap.ask(Moment(room, self.position, sharing)), room))
        if count:
            self.catch_up()
        return DraftRequest(
            self.draft_state, self.anchor, self.position, count, self.sampler.pick, self.cap, self.sampler.plain
        )

    def prefill(self, chunk: int = PREFILL_CHUNK, progress: Callable[[int, int], None] | None = None) -> None:
        """Consume all but the last prompt token, chunk by chunk."""
        while self.row.length < self.position and not self.finish:
            self.prefill_chunk(chunk)
            if progress:
                progress(self.row.length, self.position)

    def prefill_chunk(self, chunk: int = PREFILL_CHUNK, until: int | None = None) -> None:
        """Consume one chunk of the prompt, ending on a multiple of `chunk` (the target's grid first) or at `until`.

        Where the target has a grid, `until` must lie on it: a chunk cut elsewhere would change bits.
        """
        grid, total = self.target.prefill_grid or chunk, self.position
        end_of_interest = total if until is None else min(until, total)
        begin = self.row.length
        end = min(end_of_interest, (begin // grid + 1) * grid)
        wanted = end > end_of_interest - self.drafter.context
        taps = self.target.prefill(self.state, 0, self.ids[begin:end], self.drafter.taps if wanted else ())
        self.drafter.observe(self.draft_state, self.ids[begin:end], begin, taps)
        self._seen = end
        mx.eval(self.state.arrays())

    def resume(self, snapshot: Snapshot, draft_state: object | None) -> None:
        """Begin at a snapshot whose tokens are this prompt's first ones; without the drafter's state it drafts less."""
        self.state.restore(snapshot)
        if draft_state is None:
            self.drafter.observe(self.draft_state, self.ids[: snapshot.length], 0, {})
        else:
            self.draft_state = self.drafter.copy_state(draft_state)
        self._seen = snapshot.length

    def commit(self, tokens: Sequence[int]) -> Committed:
        """Append what the stop rules allow of a round's tokens and return it."""
        kept = self.stops.feed(tokens)
        self.ids += kept.tokens
        self.sampler.commit(kept.tokens)
        self.finish = kept.finish or self.finish
        return kept

    def observe(self, taps: Mapping[int, mx.array], begin: int, count: int) -> None:
        """Keep rows begin.. of the taps, of the `count` tokens the target has consumed: the old anchor and all but
        the newest id.

        The drafter is told of them when it next drafts: rounds without drafts cost it nothing.
        """
        context = self.drafter.context
        if not context or not self.taps:
            self._unseen.clear()
            self._held = 0
            return
        self._unseen.append((taps, begin, count))
        self._held += count
        if self._held >= context + SLACK:
            while self._held - self._unseen[0][2] >= context:
                self._held -= self._unseen.popleft()[2]

    def catch_up(self) -> None:
        """Tell the drafter of all tokens the target has consumed."""
        begin, self._seen = self._seen, self.row.length
        if begin < self._seen:
            taps = {layer: _joined(layer, self._unseen) for layer in self.drafter.taps if self._unseen}
            self.drafter.observe(self.draft_state, self.ids[begin : self._seen], begin, taps)
        self._unseen.clear()
        self._held = 0

    def cancel(self) -> None:
        """End the sequence before its next round or prefill chunk."""
        self.finish = self.finish or "cancelled"


def _joined(layer: int, parts: Iterable[Rows]) -> mx.array:
    """The rows of one layer, in order."""
    rows = [taps[layer][begin : begin + count] for taps, begin, count in parts]
    return rows[0] if len(rows) == 1 else mx.concatenate(rows)
