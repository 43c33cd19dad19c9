"""Anthropic's POST /v1/messages and its count_tokens: requests, bodies and events, as Claude Code needs them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from mlx_dspark.server import wire
from mlx_dspark.server.conversation import (
    Message,
    Tool,
    call_message,
    expect,
    refuse_part,
    text_field,
    text_of,
    tool_of,
)
from mlx_dspark.server.deltas import (
    Begun,
    Block,
    Broken,
    CallArguments,
    CallBegun,
    CallEnded,
    Delta,
    Ended,
    Reasoning,
    Text,
    Waiting,
)
from mlx_dspark.server.dialect import ORIGIN, measured, new_id
from mlx_dspark.server.errors import ApiError, anthropic_error
from mlx_dspark.server.schema import Count, Request, Stops, shown, validated
from mlx_dspark.server.service import Chat, Plan, Service, failed

INERT = frozenset(
    {
        "metadata", "service_tier", "cache_control", "context_management", "speed",
        "diagnostics", "inference_geo",
    }
)  # fmt: skip
REFUSED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],), "output_format": ()}
STOPS = {"stop": "end_turn", "stop_string": "stop_sequence", "length": "max_tokens", "tool_calls": "tool_use"}
SIGNATURE = "bWx4LWRzcGFyaw=="  # thinking blocks carry one; nothing here checks it
# A line clients put first and change with every request; it would keep any two prompts from sharing a prefix.
VOLATILE = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")


class MessagesRequest(Request):
    """The fields with an effect."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Count
    system: Any = None
    stop_sequences: Stops | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return tuple(self.stop_sequences or ())


def read(service: Service, body: Mapping[str, Any]) -> MessagesReply:
    request = validated(MessagesRequest, body, INERT, REFUSED)
    service.check_model(request.model)
    return MessagesReply(service, service.chat_plan(_chat(request), request), bool(request.stream))


def count(service: Service, body: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of count_tokens: how many tokens the prompt of these messages has."""
    request = validated(MessagesRequest, {"max_tokens": 1, **body}, INERT, REFUSED)
    service.check_model(request.model)
    return {"input_tokens": len(service.prompt(_chat(request)).ids)}


def _chat(request: MessagesRequest) -> Chat:
    messages: list[Message] = []
    system = VOLATILE.sub("", text_of(request.system, "system", _text_part)).strip("\n")
    if system:
        messages.append({"role": "system", "content": system})
    for index, given in enumerate(request.messages):
        messages += _messages(given, f"messages.{index}")
    begin_with = ""
    if messages and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        begin_with = messages.pop()["content"].rstrip()
    allowed, one_call = _tool_choice(request.tool_choice)
    tools = _tools(request.tools or []) if allowed else []
    thinking = False if begin_with else _thinking(request)
    return Chat(messages, tools, thinking, {}, begin_with, one_call)


def _thinking(request: MessagesRequest) -> bool | None:
    """Off unless asked for. "adaptive" leaves it to the server's default."""
    if request.output_config is not None:
        _output_config(request.output_config)
    given = request.thinking
    kind = None if given is None else given.get("type")
    if kind not in (None, "enabled", "disabled", "adaptive"):
        raise ApiError(
            400, f"thinking.type is {shown(kind)}, but it must be enabled, adaptive or disabled", param="thinking.type"
        )
    if given is not None and kind is None:
        raise ApiError(400, "thinking.type is missing; it is required", param="thinking.type")
    budget = None if given is None else given.get("budget_tokens")
    if budget is not None and expect(budget, int, "thinking.budget_tokens", "a whole number") < 1:
        raise ApiError(400, f"thinking.budget_tokens must be positive (it is {budget})", param="thinking.budget_tokens")
    return {"enabled": True, "adaptive": None}.get(str(kind), False)


def _output_config(config: Mapping[str, Any]) -> None:
    for name, value in config.items():
        known = name == "effort" and value in (None, "low", "medium", "high", "xhigh", "max")
        if value is not None and not known:
            where = f"output_config.{name}"
            raise ApiError(400, f"{where} is {shown(value)}, which this server cannot do", param=where)


def _tool_choice(choice: Mapping[str, Any] | None) -> tuple[bool, bool]:
    """(may tools be called, only one of them)"""
    kind = "auto" if choice is None else choice.get("type")
    if kind not in ("auto", "none"):
        raise ApiError(
            400, f"tool_choice.type is {shown(kind)}, but this server has auto and none", param="tool_choice"
        )
    single = False if choice is None else choice.get("disable_parallel_tool_use", False)
    return kind == "auto", expect(single, bool, "tool_choice.disable_parallel_tool_use", "true or false")


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[Tool]:
    found = []
    for index, tool in enumerate(tools):
        path = f"tools.{index}"
        if tool.get("type") not in (None, "custom"):
            kind = shown(tool.get("type"))
            raise ApiError(400, f"{path}.type is {kind}, which this server does not have", param=f"{path}.type")
        found.append(tool_of(tool.get("name"), tool.get("description"), tool.get("input_schema"), path))
    return found


def _messages(given: Mapping[str, Any], path: str) -> list[Message]:
    role, content = given.get("role"), given.get("content")
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{path}.role is {shown(role)}, but it must be user or assistant", param=f"{path}.role")
    if content is None:
        raise ApiError(400, f"{path}.content is missing; it is required", param=f"{path}.content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    expect(content, list, f"{path}.content", "a string or a list of content blocks")
    places = [
        (expect(b, dict, f"{path}.content.{i}", "an object"), f"{path}.content.{i}") for i, b in enumerate(content)
    ]
    return [_assistant(places)] if role == "assistant" else _user(places, role)


def _assistant(blocks: Sequence[tuple[Mapping[str, Any], str]]) -> Message:
    texts, thoughts, calls = [], [], []
    for block, path in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(text_field(block, path))
        elif kind == "thinking":
            thoughts.append(text_field(block, path, "thinking"))
        elif kind == "tool_use":
            name, given = (
                text_field(block, path, "name"),
                expect(block.get("input"), dict, f"{path}.input", "an object"),
            )
            calls.append(call_message(name, given, block.get("id")))
        elif kind != "redacted_thinking":
            raise refuse_part(block, path)
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(blocks: Sequence[tuple[Mapping[str, Any], str]], role: str) -> list[Message]:
    """Tool results first, each a message of its own, then the texts as one."""
    results: list[Message] = []
    texts = []
    for block, path in blocks:
        if block.get("type") == "tool_result":
            content = text_of(block.get("content"), f"{path}.content", _text_part)
            results.append({"role": "tool", "content": content, "tool_call_id": block.get("tool_use_id")})
        else:
            texts.append(_text_part(block, path))
    return [*results, {"role": role, "content": "\n".join(texts)}] if texts or not results else results


def _text_part(block: Mapping[str, Any], path: str) -> str:
    if block.get("type") != "text":
        raise refuse_part(block, path)
    return text_field(block, path)


class MessagesReply:
    """One answer as a message or as Anthropic's events: blocks open, grow and close one after the other."""

    def __init__(self, service: Service, plan: Plan, stream: bool):
        self.service, self.plan, self.stream = service, plan, stream
        self._id = new_id("msg_")
        self._index = -1
        self._open: str | None = None

    def frames(self, delta: Delta) -> list[bytes]:  # noqa: PLR0911 - a flat table of kinds
        if isinstance(delta, Begun):
            return [_event("message_start", message=self._message([], self._usage(delta.cached_tokens, 0)))]
        if isinstance(delta, Reasoning):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return [*self._enter("thinking", block), self._grow({"type": "thinking_delta", "thinking": delta.text})]
        if isinstance(delta, Text):
            block = {"type": "text", "text": ""}
            return [*self._enter("text", block), self._grow({"type": "text_delta", "text": delta.text})]
        if isinstance(delta, CallBegun):
            call = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._enter("tool_use", call)
        if isinstance(delta, CallArguments):
            return [self._grow({"type": "input_json_delta", "partial_json": delta.text})]
        if isinstance(delta, CallEnded):
            return self._leave()
        if isinstance(delta, Waiting):
            return [_event("ping")]
        if isinstance(delta, Ended):
            return [*self._leave(), *self._ending(delta)]
        if isinstance(delta, Broken):
            return [wire.event(anthropic_error(failed(delta)), "error")]
        return []

    def body(self, blocks: Sequence[Block], ended: Ended) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        for block in blocks:
            if block.kind == "reasoning":
                content.append({"type": "thinking", "thinking": block.text, "signature": SIGNATURE})
            elif block.kind == "text":
                content.append({"type": "text", "text": block.text})
            elif (given := _whole(block.text)) is not None:  # a call that the limit cut has no input to give
                content.append({"type": "tool_use", "id": block.id, "name": block.name, "input": given})
        usage = self._usage(ended.finished.cached_tokens, ended.completion_tokens)
        return {**self._message(content, usage), **_stop(ended), ORIGIN: measured(self.service, ended)}

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.service.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _usage(self, cached: int, output: int) -> dict[str, Any]:
        return {
            "input_tokens": self.plan.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
        }

    def _ending(self, ended: Ended) -> list[bytes]:
        usage = self._usage(ended.finished.cached_tokens, ended.completion_tokens)
        own = {ORIGIN: measured(self.service, ended)}
        return [_event("message_delta", delta=_stop(ended), usage=usage, **own), _event("message_stop")]

    def _enter(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        """Open a block unless one of this kind is open; calls never share one."""
        if self._open == kind and kind != "tool_use":
            return []
        frames = self._leave()
        self._index += 1
        self._open = kind
        return [*frames, _event("content_block_start", index=self._index, content_block=block)]

    def _leave(self) -> list[bytes]:
        if self._open is None:
            return []
        signed = [self._grow({"type": "signature_delta", "signature": SIGNATURE})] if self._open == "thinking" else []
        self._open = None
        return [*signed, _event("content_block_stop", index=self._index)]

    def _grow(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _stop(ended: Ended) -> dict[str, Any]:
    return {"stop_reason": STOPS[ended.reason], "stop_sequence": ended.finished.stop}


def _whole(text: str) -> dict[str, Any] | None:
    try:
        return wire.decode(text.encode())
    except ApiError:
        return None


def _event(kind: str, **data: Any) -> bytes:
    return wire.event({"type": kind, **data}, kind)
