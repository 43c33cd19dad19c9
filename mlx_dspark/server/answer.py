"""An answer's events -> deltas: rounds of text split into reasoning, text and tool calls. Pure.

One per request. `enough` turns true once a request that allows a single tool call has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_dspark.decode.round import Round
from mlx_dspark.decode.scores import Score
from mlx_dspark.decode.text import ReasoningSplitter
from mlx_dspark.engine.events import Advanced, Event, Failed, Finished, Started
from mlx_dspark.server.deltas import (
    Begun,
    Broken,
    CallArguments,
    CallEnded,
    Delta,
    Ended,
    Reasoning,
    Text,
    Tokens,
)
from mlx_dspark.server.toolcalls import ToolCalls


class Answer:
    """`opened`: the prompt ended inside a think tag. `chat` off passes text through as it is."""

    def __init__(
        self,
        *,
        opened: bool = False,
        chat: bool = True,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        one_call: bool = False,
        rounds: bool = False,
    ):
        self._splitter = ReasoningSplitter(opened) if chat else None
        self._calls = ToolCalls(tools) if tools else None
        self._one_call, self._rounds = one_call, rounds
        self._unsent: list[Score] = []
        self._cut = False
        self.enough = False
        self.reasoning_tokens = 0
        self._tokens = 0

    def feed(self, event: Event) -> list[Delta]:
        """The deltas an event adds; Ended or Broken is always the last."""
        if isinstance(event, Started):
            return [Begun(event.cached_tokens)]
        if isinstance(event, Advanced):
            return [] if self.enough else self._round(event.round)
        if isinstance(event, Failed):
            return [Broken(event.message)]
        if isinstance(event, Finished):
            return self._finish(event)
        return []

    def _round(self, done: Round) -> list[Delta]:
        deltas: list[Delta] = []
        tokens: list[tuple[str, str, str]] = []
        came, before = origins(done), self._tokens
        scores: tuple[Score | None, ...] = done.scores or (None,) * len(done.tokens)
        for index, (piece, score) in enumerate(zip(done.pieces, scores, strict=True)):
            self._tokens += 1
            added = self._piece(piece)
            if added and isinstance(added[0], Reasoning):
                self.reasoning_tokens += 1
            deltas += self._scored(added, score)
            if self._rounds:
                shown = [d for d in added if isinstance(d, (Reasoning, Text, CallArguments))]
                tokens += [(_kind(d), d.text, came[index]) for d in shown]
            if self.enough:
                break
        if self._rounds:
            deltas.append(Tokens(tuple(tokens), done.proposed, done.accepted, self._tokens - before))
        return merged(deltas)

    def _piece(self, piece: str) -> list[Delta]:
        if self._splitter is None:
            return [Text(piece)] if piece else []
        return self._parsed(self._splitter.push(piece))

    def _parsed(self, pieces: list[tuple[Any, str]]) -> list[Delta]:
        deltas: list[Delta] = []
        for kind, text in pieces:
            if kind == "reasoning":
                deltas.append(Reasoning(text))
            elif self._calls is None:
                deltas.append(Text(text))
            else:
                deltas += self._limited(self._calls.push(text))
        return deltas

    def _limited(self, deltas: list[Delta]) -> list[Delta]:
        """Where one call is allowed, nothing after its end."""
        for index, delta in enumerate(deltas):
            if self._one_call and isinstance(delta, CallEnded):
                self.enough = True
                return deltas[: index + 1]
        return deltas

    def _scored(self, deltas: list[Delta], score: Score | None) -> list[Delta]:
        """Give a token's score to the text it released; a token whose text is held back waits with its own."""
        if score is None:
            return deltas
        self._unsent.append(score)
        for index, delta in enumerate(deltas):
            if isinstance(delta, Text):
                deltas[index] = Text(delta.text, tuple(self._unsent))
                self._unsent = []
        if deltas:
            self._unsent = []
        return deltas

    def _finish(self, event: Finished) -> list[Delta]:
        reason = event.result.finish_reason
        if reason == "cancelled" and not self.enough:
            return [Broken("the server is shutting down and ended this request", 503)]
        deltas: list[Delta] = []
        if not self.enough and self._splitter is not None:
            deltas = self._parsed(self._splitter.flush())
            if self._calls is not None and not self.enough:
                deltas += self._limited(self._calls.flush(closed=reason == "stop"))
        self._cut = any(isinstance(d, CallEnded) and not d.complete for d in deltas)
        if self._calls is not None and self._calls.completed and not self._cut:
            reason = "tool_calls"
        elif event.stop is not None:
            reason = "stop_string"
        return [*merged(deltas), Ended(reason, event, self._tokens)]


def origins(done: Round) -> list[str]:
    """How each token of a round came: "drafted" and accepted, then "corrected", "bonus", or "plain" without drafts."""
    last = "plain" if not done.proposed else "bonus" if done.accepted == done.proposed else "corrected"
    return ["drafted" if i < done.accepted else last for i in range(len(done.tokens))]


def merged(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind as one."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, Text) and isinstance(last, Text):
            out[-1] = Text(last.text + delta.text, last.scores + delta.scores)
        elif isinstance(delta, Reasoning) and isinstance(last, Reasoning):
            out[-1] = Reasoning(last.text + delta.text)
        elif isinstance(delta, CallArguments) and isinstance(last, CallArguments) and last.index == delta.index:
            out[-1] = CallArguments(last.index, last.text + delta.text)
        else:
            out.append(delta)
    return out


def _kind(delta: Delta) -> str:
    return "reasoning" if isinstance(delta, Reasoning) else "text" if isinstance(delta, Text) else "call"
