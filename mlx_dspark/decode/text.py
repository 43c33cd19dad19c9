"""Text as it comes: tokens to characters, stop strings wherever their borders fall, reasoning apart from the answer.

Pure: no device, no model. Concatenated pushes mean the same however the stream was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mlx_dspark.checkpoint.tokenizer import Tokenizer, TokenStream

Piece = tuple[Literal["reasoning", "text"], str]


class Detokenizer:
    """Characters of a token stream, never half of one; an unfinished character at the end is dropped."""

    def __init__(self, tokenizer: Tokenizer):
        self._stream: TokenStream = tokenizer.stream()

    def push(self, token: int) -> str:
        return self._stream.push(token)


def _held(text: str, words: Sequence[str]) -> int:
    """Length of the longest tail of `text` that a word begins with (and is not complete)."""
    longest = min(len(text), max((len(w) - 1 for w in words), default=0))
    for size in range(longest, 0, -1):
        if any(w.startswith(text[-size:]) for w in words):
            return size
    return 0


class StopMatcher:
    """Passes text on until a stop string is complete; holds back only what may still become one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._buffer = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text safe to show, and whether a stop string was completed (it and what follows are dropped)."""
        if not self._stops:
            return text, False
        for char in text:
            self._buffer += char
            found = [len(s) for s in self._stops if self._buffer.endswith(s)]
            if found:
                shown, self._buffer = self._buffer[: len(self._buffer) - max(found)], ""
                return shown, True
        keep = _held(self._buffer, self._stops)
        shown, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        return shown, False

    def flush(self) -> str:
        shown, self._buffer = self._buffer, ""
        return shown


class ReasoningSplitter:
    """Splits a stream into reasoning and answer; tags never show, newlines right after a tag are dropped.

    `opened`: the prompt ended inside <think>. Reasoning that is never closed stays reasoning, except that a
    tool call ends it.
    """

    OPEN, CLOSE, TOOL = "<think>", "</think>", "<tool_call>"

    def __init__(self, opened: bool):
        self._reasoning = opened
        self._trim = opened
        self._buffer = ""

    def push(self, text: str) -> list[Piece]:
        self._buffer += text
        pieces: list[Piece] = []
        while (found := self._next_tag()) is not None:
            at, tag = found
            self._emit(pieces, self._buffer[:at])
            self._buffer = self._buffer[at:] if tag == self.TOOL else self._buffer[at + len(tag) :]
            self._reasoning, self._trim = tag == self.OPEN, tag != self.TOOL
        keep = _held(self._buffer, self._tags())
        cut = len(self._buffer) - keep
        self._emit(pieces, self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return pieces

    def flush(self) -> list[Piece]:
        pieces: list[Piece] = []
        self._emit(pieces, self._buffer)
        self._buffer = ""
        return pieces

    def _tags(self) -> tuple[str, ...]:
        return (self.OPEN, self.CLOSE, self.TOOL) if self._reasoning else (self.OPEN, self.CLOSE)

    def _next_tag(self) -> tuple[int, str] | None:
        found = [(at, tag) for tag in self._tags() if (at := self._buffer.find(tag)) >= 0]
        return min(found, default=None)

    def _emit(self, pieces: list[Piece], text: str) -> None:
        if self._trim:
            text = text.lstrip("\n")
        if text:
            self._trim = False
            pieces.append(("reasoning" if self._reasoning else "text", text))
