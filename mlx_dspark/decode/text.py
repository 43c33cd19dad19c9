"""Text as it comes: tokens to characters, stop strings wherever their borders fall, reasoning apart from the answer.

Pure: no device, no model, no files. Concatenated pushes mean the same however the stream was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Kind = Literal["reasoning", "text"]
Piece = tuple[Kind, str]
TOOL_CALL = "<tool_call>"


class Stream(Protocol):
    """Decodes one sequence token by token."""

    def push(self, token: int, /) -> str: ...


class Streaming(Protocol):
    """A tokenizer, as far as text needs one."""

    def stream(self) -> Stream: ...


class Detokenizer:
    """Characters of a token stream, special tokens visible; never half a character.

    The pushes concatenate to the decode of all tokens; an unfinished character at the end is dropped, while bytes
    that can't become a character show as U+FFFD as soon as that is certain.
    """

    def __init__(self, tokenizer: Streaming):
        self._stream = tokenizer.stream()

    def push(self, token: int) -> str:
        """The characters this token completes; "" while one is unfinished."""
        return self._stream.push(token)


def _held(text: str, words: Sequence[str]) -> int:
    """Length of the longest tail of `text` that a word begins with (and is not complete)."""
    longest = min(len(text), max((len(w) - 1 for w in words), default=0))
    tail = text[-longest:] if longest else ""
    if not any(w[0] in tail for w in words):
        return 0
    for size in range(longest, 0, -1):
        if any(w.startswith(text[-size:]) for w in words):
            return size
    return 0


class StopMatcher:
    """Passes text on until a stop string is complete; holds back only what may still become one.

    The match that ends first counts; of those that end together, the longest. Empty stop strings never match.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(s for s in stops if s)
        self._buffer = ""
        self._stopped = False
        self.matched: str | None = None  # the stop string that was completed

    def push(self, text: str) -> tuple[str, bool]:
        """Text safe to show, and whether a stop string was completed (it and all that follows are dropped)."""
        if self._stopped or not self._stops:
            return "" if self._stopped else text, self._stopped
        for char in text:
            self._buffer += char
            found = [len(s) for s in self._stops if self._buffer.endswith(s)]
            if found:
                self.matched = self._buffer[-max(found) :]
                shown, self._buffer, self._stopped = self._buffer[: -max(found)], "", True
                return shown, True
        cut = len(self._buffer) - _held(self._buffer, self._stops)
        shown, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return shown, False

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        shown, self._buffer = self._buffer, ""
        return shown


class ReasoningSplitter:
    """Splits a stream into reasoning and answer; tags never show, newlines right after a tag are dropped.

    `opened`: the prompt ended inside the open tag. A repeated tag changes nothing. Reasoning that is never closed
    stays reasoning, except that `<tool_call>` ends it and begins the answer.
    """

    def __init__(self, opened: bool, open_tag: str = "<think>", close_tag: str = "</think>"):
        self._open, self._close = open_tag, close_tag
        self._reasoning = opened
        self._trim = opened
        self._buffer = ""

    def push(self, text: str) -> list[Piece]:
        """What `text` settles, in order; neighbouring pieces may be of one kind."""
        self._buffer += text
        pieces: list[Piece] = []
        while (found := self._next_tag()) is not None:
            at, tag = found
            self._emit(pieces, self._buffer[:at])
            self._buffer = self._buffer[at:] if tag == TOOL_CALL else self._buffer[at + len(tag) :]
            self._reasoning, self._trim = tag == self._open, tag != TOOL_CALL
        cut = len(self._buffer) - _held(self._buffer, self._tags())
        self._emit(pieces, self._buffer[:cut])
        self._buffer = self._buffer[cut:]
        return pieces

    def flush(self) -> list[Piece]:
        """What was held back, once no more text comes: the beginning of a tag that never was one."""
        pieces: list[Piece] = []
        self._emit(pieces, self._buffer)
        self._buffer = ""
        return pieces

    def _tags(self) -> tuple[str, ...]:
        both = (self._open, self._close)
        return (*both, TOOL_CALL) if self._reasoning else both

    def _next_tag(self) -> tuple[int, str] | None:
        found = [(at, tag) for tag in self._tags() if (at := self._buffer.find(tag)) >= 0]
        return min(found, default=None)

    def _emit(self, pieces: list[Piece], text: str) -> None:
        if self._trim:
            text = text.lstrip("\n")
        if text:
            self._trim = False
            pieces.append(("reasoning" if self._reasoning else "text", text))
