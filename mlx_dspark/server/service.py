"""Between requests and the engine: limits, prompts, jobs, and one request's deltas on the event loop.

The same rules for every dialect. Knows no dialect's JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.engine.engine import Engine, EngineBusy, EngineClosed, Ticket
from mlx_dspark.engine.events import Advanced, Event, Failed, Finished, Job
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.server.answer import Answer, merged
from mlx_dspark.server.conversation import Message, Tool, turns
from mlx_dspark.server.deltas import Broken, Delta, Waiting
from mlx_dspark.server.errors import ApiError
from mlx_dspark.server.prompt import Prompt, chat_prompt
from mlx_dspark.server.schema import Request
from mlx_dspark.server.settings import ServeOptions

PACE = 0.02  # seconds between two writes of an answer at least


@dataclass(frozen=True)
class Chat:
    """A conversation as a dialect found it. `thinking`: None is the server's default."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    thinking: bool | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)
    begin_with: str = ""
    one_call: bool = False


@dataclass(frozen=True)
class Plan:
    """A request ready to run."""

    job: Job
    answer: Answer

    @property
    def prompt_tokens(self) -> int:
        return len(self.job.ids)


class Service:
    """One server's state. Everything but `open` may run on any thread."""

    def __init__(self, engine: Engine, options: ServeOptions):
        self.engine, self.options = engine, options
        self.pair = engine.pair
        self.created = int(time.time())
        name = str(self.pair.names["model"])
        self.model = Path(name).resolve().name if Path(name).is_dir() else name
        self.names = (self.model, *options.alias)
        SamplingParams().with_defaults(self.pair.config.sampling)  # a bad generation_config.json shows at once

    @property
    def window(self) -> int:
        """Most tokens of prompt and answer together."""
        most = self.pair.config.max_positions
        return min(most, self.options.context_window or most)

    def check_model(self, name: str | None) -> None:
        """Raise ApiError 404 unless the name is served; none at all is the one model there is."""
        if name is not None and name not in self.names:
            raise ApiError(
                404,
                f"the model {name[:200]!r} is not served here; served: {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    def prompt(self, chat: Chat) -> Prompt:
        thinking = chat.thinking
        if thinking is None and not self.options.thinking:
            thinking = False
        switches = {} if thinking is None else {"enable_thinking": thinking}
        messages = turns(chat.messages)
        return chat_prompt(self.pair.tokenizer, messages, chat.tools, {**switches, **chat.switches}, chat.begin_with)

    def chat_plan(self, chat: Chat, request: Request, *, scores: int | None = None, rounds: bool = False) -> Plan:
        prompt = self.prompt(chat)
        tools = {tool.name: tool.parameters for tool in chat.tools}
        answer = Answer(opened=prompt.opened, tools=tools, one_call=chat.one_call, rounds=rounds)
        return self.plan(prompt, answer, request, scores)

    def plan(self, prompt: Prompt, answer: Answer, request: Request, scores: int | None = None) -> Plan:
        """Raises ApiError 400 where the prompt or a setting is outside what this server can do."""
        limit = self._limit(len(prompt.ids), request.limit)
        sampling = request.sampling()
        for token in sampling.logit_bias or {}:
            if token >= self.pair.target.vocab_size:
                most = self.pair.target.vocab_size - 1
                raise ApiError(400, f"logit_bias names the token {token}, but the last is {most}", param="logit_bias")
        options = GenerateOptions(max_tokens=limit, max_draft=self._max_draft(request), stop=request.stop_texts)
        return Plan(Job(prompt.ids, options, sampling, prompt.marks, scores), answer)

    def open(self, plan: Plan) -> Flow:
        """Submit. Raises ApiError 429 if the queue is full, 503 while shutting down."""
        flow = Flow(plan, self.options.keepalive)
        try:
            flow.ticket = self.engine.submit(plan.job, flow.listen)
        except EngineBusy as error:
            raise ApiError(429, str(error), code="queue_full", headers={"retry-after": "1"}) from None
        except EngineClosed as error:
            raise ApiError(503, str(error), code="shutting_down", headers={"retry-after": "10"}) from None
        return flow

    def _limit(self, prompt_tokens: int, asked: int | None) -> int:
        if not prompt_tokens:
            raise ApiError(400, "the prompt has no token; give at least one word", param="prompt")
        room = self.window - prompt_tokens
        if room < 1:
            raise ApiError(
                400,
                f"prompt is too long: {prompt_tokens} tokens > {self.window - 1} maximum. This model's maximum context "
                f"length is {self.window} tokens, and the answer needs one at least; shorten the prompt",
                param="messages",
                code="context_length_exceeded",
            )
        return min(room, asked or self.options.max_tokens or room, 1_000_000)

    def _max_draft(self, request: Request) -> int | None:
        most = self.options.max_draft
        if request.mode == "baseline":
            return 0
        if request.mode not in (None, "auto", self.pair.drafter.name):
            raise ApiError(
                400,
                f"mode is {request.mode!r}, but this server drafts with {self.pair.drafter.name!r}; "
                "ask for auto or baseline",
                param="mode",
            )
        if request.max_draft is None or request.max_draft == "auto":
            return most
        if most is not None and request.max_draft > most:
            raise ApiError(
                400, f"max_draft is {request.max_draft}, but this server allows {most} at most", param="max_draft"
            )
        return request.max_draft


class Flow:
    """One submitted request: the engine's events as deltas, with a Waiting wherever `keepalive` seconds add none.

    Rounds that follow within PACE of what was sent last wait for each other, so that a fast engine's rounds share a
    write; the first and the last never wait.
    """

    def __init__(self, plan: Plan, keepalive: float):
        self.plan = plan
        self.ticket: Ticket | None = None
        self._keepalive = keepalive
        self._events: deque[Event] = deque()
        self._listening = False
        self._loop = asyncio.get_running_loop()
        self._bell = self._loop.create_future()

    def listen(self, event: Event) -> None:
        """Called on the engine's thread, which wakes the loop only where someone waits for this event."""
        self._events.append(event)
        if (self._listening or isinstance(event, (Finished, Failed))) and not self._loop.is_closed():
            self._listening = False
            self._loop.call_soon_threadsafe(self._wake)

    def cancel(self) -> None:
        if self.ticket is not None:
            self.ticket.cancel()

    async def batches(self) -> AsyncIterator[list[Delta]]:
        """The deltas of all events that came meanwhile; the last is one Ended or Broken. Leaving early cancels."""
        answer, sent, over = self.plan.answer, time.monotonic(), False
        try:
            while not over:
                self._listening = True  # before looking: what comes after the look rings
                if not self._events:
                    await self._pause(sent + self._keepalive - time.monotonic())
                self._listening = False
                deltas: list[Delta] = []
                decoding = False
                while self._events and not over:
                    event = self._events.popleft()
                    deltas += answer.feed(event)
                    decoding |= isinstance(event, Advanced)
                    over = isinstance(event, (Finished, Failed))
                if not deltas and time.monotonic() - sent >= self._keepalive:
                    deltas = [Waiting()]
                if answer.enough and not over:
                    self.cancel()
                if deltas:
                    yield merged(deltas)
                    sent = time.monotonic()
                    if decoding and not (over or self._complete):
                        await self._pause(PACE)
        finally:
            self.cancel()

    @property
    def _complete(self) -> bool:
        return bool(self._events) and isinstance(self._events[-1], (Finished, Failed))

    async def _pause(self, seconds: float) -> None:
        """Until the bell rings, or for `seconds`."""
        self._bell = self._loop.create_future()
        alarm = self._loop.call_later(max(0.001, seconds), self._wake)
        try:
            await self._bell
        finally:
            alarm.cancel()

    def _wake(self) -> None:
        if not self._bell.done():
            self._bell.set_result(None)


def failed(delta: Broken) -> ApiError:
    """A broken answer as the error of a request that was not streamed."""
    return ApiError(delta.status, delta.message, code="shutting_down" if delta.status == 503 else "internal_error")
