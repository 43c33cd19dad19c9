"""What an answer is made of while it comes, whatever the dialect: the pieces parsers emit and dialects write down.

Pure data: no HTTP, no tokens, no model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlx_dspark.decode.scores import Score
from mlx_dspark.engine.events import Finished


@dataclass(frozen=True)
class Begun:
    """The answer is being made; this many prompt tokens came from the prefix cache."""

    cached_tokens: int


@dataclass(frozen=True)
class Reasoning:
    text: str


@dataclass(frozen=True)
class Text:
    """Answer text, with the scores of its tokens if they were asked for."""

    text: str
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True)
class CallBegun:
    """Tool call number `index` (from 0) of this answer begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of a call's arguments: pieces of one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """`complete` is false where the answer was cut inside the call."""

    index: int
    complete: bool = True


@dataclass(frozen=True)
class Tokens:
    """One round: its drafts, how many stood, how many tokens it gave, and the text of each token that showed some:
    (kind, text, origin), kind "reasoning", "text" or "call"; origins as in `origins`."""

    tokens: tuple[tuple[str, str, str], ...]
    proposed: int
    accepted: int
    committed: int


@dataclass(frozen=True)
class Waiting:
    """Nothing was sent for a while."""


@dataclass(frozen=True)
class Ended:
    """The last delta of a whole answer. `reason` is "stop", "stop_string", "length" or "tool_calls".

    `completion_tokens` are those of the answer; the engine may have decoded a few more before it was told to stop.
    """

    reason: str
    finished: Finished
    completion_tokens: int


@dataclass(frozen=True)
class Broken:
    """The last delta of an answer that failed or was taken away by a shutdown."""

    message: str
    status: int = 500


Delta = Begun | Reasoning | Text | CallBegun | CallArguments | CallEnded | Tokens | Waiting | Ended | Broken


@dataclass
class Block:
    """A finished run of one kind: "reasoning", "text" or "call" (then `text` is its arguments as JSON)."""

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""
    scores: list[Score] = field(default_factory=list)


class Collector:
    """Folds deltas into blocks, in their order."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def add(self, delta: Delta) -> None:
        if isinstance(delta, Reasoning):
            self._open("reasoning").text += delta.text
        elif isinstance(delta, Text):
            block = self._open("text")
            block.text += delta.text
            block.scores += delta.scores
        elif isinstance(delta, CallBegun):
            self.blocks.append(Block("call", id=delta.id, name=delta.name))
        elif isinstance(delta, CallArguments):
            self.blocks[-1].text += delta.text

    def text(self, kind: str) -> str:
        return "".join(b.text for b in self.blocks if b.kind == kind)

    def of(self, kind: str) -> list[Block]:
        return [b for b in self.blocks if b.kind == kind]

    def _open(self, kind: str) -> Block:
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(Block(kind))
        return self.blocks[-1]
