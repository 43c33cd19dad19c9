"""What the round needs of a drafter, the drafter that never drafts, and the one that asks others in turn.

A drafter only guesses what the target will pick; it can cost time, never a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import mlx.core as mx

Pick = Callable[[mx.array, int, "mx.array | None"], mx.array]
"""(logits [R, V], position of the token row 0 predicts, uncommitted tokens [P] or None) -> ids [R]."""


@dataclass(frozen=True, eq=False)
class DraftBlock:
    """A proposal after the anchor: int32 tokens [k], possibly not evaluated yet."""

    tokens: mx.array
    source: str

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


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
    greedy: bool = False


class Drafter(Protocol):
    """`taps` are the target layers it reads; `context` how many of a prompt's last rows of them it wants."""

    @property
    def name(self) -> str: ...

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


class FirstOf:
    """Asks its drafters in order; the first block that is not empty is proposed."""

    def __init__(self, drafters: Sequence[Drafter]):
        self.drafters = list(drafters)
        self.name = "+".join(d.name for d in self.drafters)
        self.taps = tuple(sorted({layer for d in self.drafters for layer in d.taps}))
        self.max_draft = max(d.max_draft for d in self.drafters)
        self.context = max(d.context for d in self.drafters)

    def new_state(self) -> list[Any]:
        return [d.new_state() for d in self.drafters]

    def copy_state(self, state: list[Any]) -> list[Any]:
        return [d.copy_state(part) for d, part in zip(self.drafters, state, strict=True)]

    def state_nbytes(self, state: list[Any]) -> int:
        return sum(d.state_nbytes(part) for d, part in zip(self.drafters, state, strict=True))

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        blocks = [block_of((), self.name) for _ in requests]
        open_at = list(range(len(requests)))
        for index, drafter in enumerate(self.drafters):
            asked = [self._for(requests[i], index, drafter) for i in open_at]
            for i, block in zip(open_at, drafter.propose(asked) if asked else [], strict=True):
                blocks[i] = block
            open_at = [i for i in open_at if not len(blocks[i])]
        return blocks

    def observe(self, state: list[Any], tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        for part, drafter in zip(state, self.drafters, strict=True):
            drafter.observe(part, tokens, position, {k: v for k, v in taps.items() if k in drafter.taps})

    def _for(self, request: DraftRequest, index: int, drafter: Drafter) -> DraftRequest:
        return replace(request, state=request.state[index], count=min(request.count, drafter.max_draft))
