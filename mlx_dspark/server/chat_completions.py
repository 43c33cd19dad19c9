"""OpenAI's POST /v1/chat/completions: its request, its body, its chunks. Pure but for ids and the clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from mlx_dspark.decode.scores import Score
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
    Delta,
    Ended,
    Reasoning,
    Text,
    Tokens,
    Waiting,
)
from mlx_dspark.server.dialect import ORIGIN, measured, new_id, streamed
from mlx_dspark.server.errors import ApiError, openai_error
from mlx_dspark.server.schema import Count, OpenAIRequest, shown, validated
from mlx_dspark.server.service import Chat, Plan, Service, failed

# Accepted and without effect: bookkeeping, and hints to a fleet of servers.
INERT = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "verbosity",
    }
)  # fmt: skip
# Refused unless they ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "best_of": (1,),
    "use_beam_search": (False,),
}
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
RESERVED = {"self", "messages", "tools", "documents", "add_generation_prompt"}
ROLES = {"system", "developer", "user", "assistant", "tool"}


class ChatCompletion(OpenAIRequest):
    """The fields with an effect."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def read(service: Service, body: Mapping[str, Any]) -> ChatReply:
    request = validated(ChatCompletion, body, INERT, REFUSED)
    service.check_model(request.model)
    if request.top_logprobs is not None and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    tools = tools_of(request.tools, "tools") if tool_choice(request.tool_choice) else []
    switches = _switches(request.chat_template_kwargs or {})
    chat = Chat(
        [message(m, f"messages.{i}") for i, m in enumerate(request.messages)],
        tools,
        thinking=thinking_of(request.reasoning_effort, "reasoning_effort"),
        switches=switches,
        one_call=request.parallel_tool_calls is False,
    )
    scores = (request.top_logprobs or 0) if request.logprobs else None
    plan = service.chat_plan(chat, request, scores=scores, rounds=bool(request.stream_rounds))
    return ChatReply(service, plan, bool(request.stream), request.wants_usage)


def _switches(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What goes to the chat template; it knows its own names."""
    for name in given:
        if name in RESERVED:
            raise ApiError(400, f"chat_template_kwargs.{name} is the server's own; leave it out", param=name)
    if given.get("enable_thinking") is not None:
        expect(given["enable_thinking"], bool, "chat_template_kwargs.enable_thinking", "true or false")
    return {name: value for name, value in given.items() if value is not None}


def thinking_of(effort: str | None, param: str) -> bool | None:
    """The template knows on and off: only "none" is off, all other efforts leave the default."""
    if effort is not None and effort not in EFFORTS:
        raise ApiError(400, f"{param} is {shown(effort)}, but it must be one of {', '.join(EFFORTS)}", param=param)
    return False if effort == "none" else None


def tool_choice(choice: Any) -> bool:
    """May tools be called? ApiError for a choice that would force one."""
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind not in (None, "auto", "none"):
        raise ApiError(400, f"tool_choice is {shown(choice)}, but this server has auto and none", param="tool_choice")
    return kind != "none"


def tools_of(tools: Sequence[Mapping[str, Any]] | None, path: str) -> list[Tool]:
    found = []
    for index, tool in enumerate(tools or ()):
        place = f"{path}.{index}"
        if tool.get("type") != "function":
            kind = shown(tool.get("type"))
            raise ApiError(400, f"{place}.type is {kind}, but it must be 'function'", param=f"{place}.type")
        function = expect(tool.get("function"), dict, f"{place}.function", "an object")
        found.append(
            tool_of(function.get("name"), function.get("description"), function.get("parameters"), f"{place}.function")
        )
    return found


def message(given: Mapping[str, Any], path: str) -> Message:
    """One message for the template."""
    role = given.get("role")
    if role not in ROLES:
        known = ", ".join(sorted(ROLES))
        raise ApiError(400, f"{path}.role is {shown(role)}, but it must be one of {known}", param=f"{path}.role")
    out: Message = {"role": "system" if role == "developer" else role}
    out["content"] = text_of(given.get("content"), f"{path}.content", part_text)
    if role == "tool":
        out["tool_call_id"] = text_field(given, path, "tool_call_id")
    if role == "assistant":
        reasoning = given.get("reasoning_content", given.get("reasoning"))
        if reasoning is not None:
            out["reasoning_content"] = expect(reasoning, str, f"{path}.reasoning_content", "a string")
        calls = given.get("tool_calls")
        if calls:
            calls = expect(calls, list, f"{path}.tool_calls", "a list")
            out["tool_calls"] = [_call(call, f"{path}.tool_calls.{i}") for i, call in enumerate(calls)]
    elif given.get("content") is None:
        raise ApiError(400, f"{path}.content is missing; it is required", param=f"{path}.content")
    return out


def part_text(part: Mapping[str, Any], path: str) -> str | None:
    if part.get("type") in ("text", "input_text", "output_text"):
        return text_field(part, path)
    if part.get("type") == "refusal":
        return text_field(part, path, "refusal")
    raise refuse_part(part, path)


def _call(call: Any, path: str) -> dict[str, Any]:
    function = expect(expect(call, dict, path, "an object").get("function"), dict, f"{path}.function", "an object")
    return call_message(text_field(function, f"{path}.function", "name"), function.get("arguments"), call.get("id"))


def usage(ended: Ended, reasoning_tokens: int) -> dict[str, Any]:
    result = ended.finished.result
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": ended.completion_tokens,
        "total_tokens": result.prompt_tokens + ended.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": ended.finished.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


class Scorer:
    """Scores in OpenAI's form."""

    def __init__(self, service: Service):
        self._decode = service.pair.tokenizer.decode

    def token(self, token: int) -> str:
        return self._decode([token])

    def entry(self, score: Score) -> dict[str, Any]:
        top = [self._one(t, p) for t, p in score.top]
        return {**self._one(score.token, score.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token(token)
        whole = "\ufffd" not in text
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode()) if whole else None}


class ChatReply:
    """One answer as a chat.completion or as chunks."""

    def __init__(self, service: Service, plan: Plan, stream: bool, wants_usage: bool):
        self.service, self.plan, self.stream = service, plan, stream
        self._wants_usage = wants_usage
        self._head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": service.model}
        self._scorer = Scorer(service)
        self._scored = plan.job.top_logprobs is not None

    def frames(self, delta: Delta) -> list[bytes]:  # noqa: PLR0911 - a flat table of kinds
        if isinstance(delta, Begun):
            return [self._chunk({"role": "assistant", "content": ""})]
        if isinstance(delta, Reasoning):
            return [self._chunk({"reasoning_content": delta.text})]
        if isinstance(delta, Text):
            return [self._chunk({"content": delta.text}, logprobs=self._logprobs(delta.scores))]
        if isinstance(delta, CallBegun):
            function = {"name": delta.name, "arguments": ""}
            call = {"index": delta.index, "id": delta.id, "type": "function", "function": function}
            return [self._chunk({"tool_calls": [call]})]
        if isinstance(delta, CallArguments):
            call = {"index": delta.index, "function": {"arguments": delta.text}}
            return [self._chunk({"tool_calls": [call]})]
        if isinstance(delta, Tokens):
            return [self._chunk({}, own=streamed(delta))]
        if isinstance(delta, Waiting):
            return [self._chunk({})]
        if isinstance(delta, Ended):
            return self._ending(delta)
        if isinstance(delta, Broken):
            return [wire.event(openai_error(failed(delta))), wire.DONE]
        return []

    def body(self, blocks: Sequence[Block], ended: Ended) -> dict[str, Any]:
        texts, calls = [b for b in blocks if b.kind == "text"], [b for b in blocks if b.kind == "call"]
        reasoning = "".join(b.text for b in blocks if b.kind == "reasoning")
        text = "".join(b.text for b in texts)
        answer: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if reasoning:
            answer["reasoning_content"] = reasoning
        if calls:
            answer["tool_calls"] = [
                {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": b.text}} for b in calls
            ]
        choice: dict[str, Any] = {
            "index": 0,
            "message": answer,
            "finish_reason": finish_reason(ended),
            "logprobs": None,
        }
        if self._scored:
            choice["logprobs"] = self._logprobs([s for b in texts for s in b.scores])
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self._usage(ended),
            ORIGIN: measured(self.service, ended),
        }

    def _ending(self, ended: Ended) -> list[bytes]:
        own = measured(self.service, ended)
        frames = [self._chunk({}, finish=finish_reason(ended), own=own)]
        if self._wants_usage:
            head = {**self._head, "object": "chat.completion.chunk"}
            frames.append(wire.event({**head, "choices": [], "usage": self._usage(ended)}))
        return [*frames, wire.DONE]

    def _usage(self, ended: Ended) -> dict[str, Any]:
        return usage(ended, self.plan.answer.reasoning_tokens)

    def _chunk(
        self, delta: dict[str, Any], *, finish: str | None = None, own: Any = None, logprobs: Any = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        more = {ORIGIN: own} if own is not None else {}
        return wire.event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **more})

    def _logprobs(self, scores: Sequence[Score]) -> dict[str, Any] | None:
        return {"content": [self._scorer.entry(s) for s in scores], "refusal": None} if self._scored else None


def finish_reason(ended: Ended) -> str:
    return "stop" if ended.reason == "stop_string" else ended.reason
