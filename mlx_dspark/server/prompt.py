"""Messages -> prompt ids through the checkpoint's own template, and the positions other prompts will share.

Knows templates as text in and text out; no dialect and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_dspark.checkpoint.tokenizer import Tokenizer
from mlx_dspark.errors import PromptError, TokenizerError
from mlx_dspark.server.conversation import Message, Tool
from mlx_dspark.server.errors import ApiError

RECENT = 3  # of the newest turn borders, kept for the next turn, for edits and for another try
FAR = 64  # tokens after the last border from which the prompt's own end is worth keeping too


@dataclass(frozen=True)
class Prompt:
    """`opened`: it ends inside a think tag. `marks`: see engine.events.Job."""

    ids: tuple[int, ...]
    opened: bool
    marks: tuple[int, ...]


def chat_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    switches: Mapping[str, Any],
    begin_with: str = "",
) -> Prompt:
    """`begin_with` is text the answer is to go on from. ApiError 400 if the template refuses the messages."""
    offered: dict[str, Any] = {"tools": [tool.for_template() for tool in tools]} if tools else {}
    try:
        text = tokenizer.render(messages, **offered, **switches)
        history = tokenizer.render(messages, add_generation_prompt=False, **offered, **switches)
        opener = text[len(history) :] if text.startswith(history) else ""
        ids = tokenizer.encode(text + begin_with)
        tail = tokenizer.encode(opener + begin_with)
    except (PromptError, TokenizerError) as error:
        raise ApiError(400, str(error), param="messages") from None
    opened = not begin_with and opener.rfind("<think>") > opener.rfind("</think>")
    border = len(ids) - len(tail) if opener and ids[len(ids) - len(tail) :] == tail else None
    return Prompt(tuple(ids), opened, tuple(_marks(ids, border)))


def text_prompt(ids: Sequence[int]) -> Prompt:
    return Prompt(tuple(ids), False, (len(ids) - 1,))


def _marks(ids: Sequence[int], border: int | None) -> list[int]:
    """The first turn's end, the newest ones', and the prompt's own end where that is far from them.

    A turn ends where the token stands that opens the answer.
    """
    if border is None:
        return [len(ids) - 1]
    ends = [i for i in range(1, border + 1) if ids[i] == ids[border]]
    far = [len(ids) - 1] if len(ids) - border > FAR else []
    return sorted({*ends[:1], *ends[-RECENT:], *far})
