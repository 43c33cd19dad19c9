"""What the round needs of a drafter, the drafter that never drafts, and the one that lets others compete.

A drafter only guesses what the target will pick; it can cost time, never a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx

from mlx_dspark.models.confidence import Confidence

Pick = Callable[[mx.array, int, "mx.array | None"], mx.array]
"""(logits [R, V], position of the token row 0 predicts, uncommitted tokens [P] or None) -> ids [R]."""


@dataclass(frozen=True, eq=False)
class DraftBlock:
    """A proposal after the anchor: int32 tokens [k], possibly not evaluated yet; None: it cannot say how sure it is."""

    tokens: mx.array
    source: str
    confidence: Confidence | None = None

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def cut(self, count: int) -> DraftBlock:
        """The first `count` drafts."""
        return self if count >= len(self) else replace(self, tokens=self.tokens[:count])

    def arrays(self) -> list[mx.array]:
        """What to evaluate before the block is read."""
        return [self.tokens, *(self.confidence.arrays() if self.confidence else [])]

    def ids(self) -> list[int]:
        """The drafts on the host; waits for them."""
        return [int(t) for t in self.tokens.tolist()]  # type: ignore[union-attr, arg-type]


class Judge(Protocol):
    """Decides between drafters that compete for one block. `best` is the best block so far, at first an empty one."""

    def wanted(self, source: str, best: DraftBlock) -> int:
        """Drafts to ask of `source`, 0 to leave it alone."""

    def better(self, found: DraftBlock, best: DraftBlock) -> DraftBlock:
        """The one of the two to go on with."""


class FirstFound:
    """The first block that is not empty, of at most `drafts`."""

    def __init__(self, drafts: int = 1 << 30):
        self.drafts = drafts

    def wanted(self, source: str, best: DraftBlock) -> int:
        return 0 if len(best) else self.drafts

    def better(self, found: DraftBlock, best: DraftBlock) -> DraftBlock:
        return best if len(best) else found


FIRST_FOUND = FirstFound()


@dataclass(frozen=True, eq=False)
class DraftRequest:
    """`count` drafts after `anchor`, which stands at absolute `position` and is not yet consumed by the target.

    `greedy` says that `pick` is the likeliest token and nothing else.
    """

    state: Any
    anchor: int
    position: int
    count: int
    pick: Pick
    judge: Judge = FIRST_FOUND
    greedy: bool = False


class Drafter(Protocol):
    """`taps` are the target layers it reads; `context` how many of a prompt's last rows of them it wants."""

    @property
    def name(self) -> str: ...

    @property
    def sources(self) -> tuple[str, ...]:
        """The names its blocks may bear as their source."""

    @property
    def taps(self) -> tuple[int, ...]: ...

    @property
    def max_draft(self) -> int: ...

    @property
    def context(self) -> int: ...

    def new_state(self) -> Any: ...

    def copy_state(self, state: Any) -> Any:
        """An independent copy of a sequence's state, cut to what is in use."""

    def state_nbytes(self, state: Any) -> int:
        """Bytes a state holds."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """One block a request, of at most `count` tokens."""

    def observe(self, state: Any, tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        """The target consumed `tokens` at `position`..; taps[layer] [R, H] are of the last R of them, or empty."""


def block_of(tokens: Sequence[int], source: str) -> DraftBlock:
    return DraftBlock(mx.array(list(tokens), mx.int32), source)


@dataclass(frozen=True)
class NoDrafter:
    """Plain decoding: an empty block every round."""

    name: str = "baseline"
    sources: tuple[str, ...] = ()
    taps: tuple[int, ...] = ()
    max_draft: int = 0
    context: int = 0

    def new_state(self) -> None:
        return None

    def copy_state(self, state: Any) -> None:
        return None

    def state_nbytes(self, state: Any) -> int:
        return 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        return [block_of((), self.name) for _ in requests]

    def observe(self, state: Any, tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        pass


@dataclass(frozen=True, eq=False)
class Contest:
    """Asks its drafters in order, cheap ones first; each request's judge says whom, for how many, and who wins."""

    drafters: Sequence[Drafter]

    @property
    def name(self) -> str:
        return "+".join(d.name for d in self.drafters)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(source for d in self.drafters for source in d.sources)

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(sorted({layer for d in self.drafters for layer in d.taps}))

    @property
    def max_draft(self) -> int:
        return max(d.max_draft for d in self.drafters)

    @property
    def context(self) -> int:
        return max(d.context for d in self.drafters)

    def new_state(self) -> list[Any]:
        return [d.new_state() for d in self.drafters]

    def copy_state(self, state: list[Any]) -> list[Any]:
        return [d.copy_state(part) for d, part in zip(self.drafters, state, strict=True)]

    def state_nbytes(self, state: list[Any]) -> int:
        return sum(d.state_nbytes(part) for d, part in zip(self.drafters, state, strict=True))

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        best = [block_of((), self.name) for _ in requests]
        for index, drafter in enumerate(self.drafters):
            asked = []
            for i, r in enumerate(requests):
                count = min(r.judge.wanted(drafter.name, best[i]), r.count, drafter.max_draft)
                if count > 0:
                    asked.append((i, replace(r, state=r.state[index], count=count)))
            found = drafter.propose([request for _, request in asked]) if asked else []
            for (i, request), block in zip(asked, found, strict=True):
                best[i] = request.judge.better(block, best[i])
        return best

    def observe(self, state: list[Any], tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        for part, drafter in zip(state, self.drafters, strict=True):
            drafter.observe(part, tokens, position, {k: v for k, v in taps.items() if k in drafter.taps})
