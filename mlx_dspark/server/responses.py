"""OpenAI's POST /v1/responses, stateless: requests as its SDK and Codex send them -> prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_dspark.server.chat_completions import part_text, thinking_of, tool_choice
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
from mlx_dspark.server.errors import ApiError
from mlx_dspark.server.responses_reply import ResponsesReply
from mlx_dspark.server.schema import Count, Request, shown, validated
from mlx_dspark.server.service import Chat, Service

INERT = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "client_metadata",
        "stream_options",
    }
)  # fmt: skip
REFUSED: dict[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "truncation": ("disabled",),
    "max_tool_calls": (),
    "moderation": (),
    "context_management": ([],),
    "top_logprobs": (0,),
}
# What `include` may list: parts that answers of this server never have, or have anyway.
INCLUDED = frozenset(
    {
        "reasoning.encrypted_content", "web_search_call.action.sources", "web_search_call.results",
        "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
        "message.input_image.image_url",
    }
)  # fmt: skip
HOSTED = ("web_search", "web_search_preview")  # OpenAI's own; offered by agents, never owed: left out of the prompt


class ResponsesRequest(Request):
    """The fields with an effect."""

    input: Any = None
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_output_tokens


def read(service: Service, body: Mapping[str, Any]) -> ResponsesReply:
    request = validated(ResponsesRequest, body, INERT, REFUSED)
    service.check_model(request.model)
    _text_format(request.text)
    for index, part in enumerate(request.include or ()):
        if part not in INCLUDED:
            raise ApiError(
                400, f"include asks for {shown(part)}, which this server does not have", param=f"include.{index}"
            )
    namespaces: dict[str, str] = {}
    tools = _tools(request.tools or [], "tools", namespaces) if tool_choice(request.tool_choice) else []
    chat = Chat(
        _messages(request),
        tools,
        thinking=_thinking(request.reasoning),
        one_call=request.parallel_tool_calls is False,
    )
    plan = service.chat_plan(chat, request)
    echo = {
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tool_choice": "auto" if tool_choice(request.tool_choice) else "none",
        "tools": [_echoed(tool) for tool in request.tools or []],
        "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
        "metadata": body.get("metadata") or {},
    }
    return ResponsesReply(service, plan, bool(request.stream), echo, namespaces)


def _thinking(reasoning: Mapping[str, Any] | None) -> bool | None:
    effort = (reasoning or {}).get("effort")
    if effort is not None:
        expect(effort, str, "reasoning.effort", "a string")
    return thinking_of(effort, "reasoning.effort")


def _text_format(text: Mapping[str, Any] | None) -> None:
    given = (text or {}).get("format")
    if given is not None and given != {"type": "text"}:
        raise ApiError(400, "text.format is not supported by this server beyond plain text", param="text.format")


def _tools(tools: Sequence[Mapping[str, Any]], path: str, namespaces: dict[str, str], within: str = "") -> list[Tool]:
    """Functions, those inside namespaces too; `namespaces` learns which name belongs to which."""
    found: list[Tool] = []
    for index, tool in enumerate(tools):
        place = f"{path}.{index}"
        kind = expect(tool, dict, place, "an object").get("type")
        if kind == "function":
            found.append(tool_of(tool.get("name"), tool.get("description"), tool.get("parameters"), place))
            if within:
                namespaces[found[-1].name] = within
        elif kind == "namespace" and not within:
            inner = expect(tool.get("tools"), list, f"{place}.tools", "a list")
            found += _tools(inner, f"{place}.tools", namespaces, text_field(tool, place, "name"))
        elif kind not in HOSTED:
            raise ApiError(
                400, f"{place}.type is {shown(kind)}, which this server does not have", param=f"{place}.type"
            )
    return found


def _echoed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as a response repeats it, with the fields OpenAI's models require."""
    if tool.get("type") == "function":
        return {"description": None, "parameters": None, "strict": None, **tool}
    if tool.get("type") == "namespace":
        return {"description": "", **tool}
    return dict(tool)


def _messages(request: ResponsesRequest) -> list[Message]:
    messages: list[Message] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*messages, {"role": "user", "content": request.input}]
    items = expect(request.input, list, "input", "a string or a list of items")
    for index, item in enumerate(items):
        message = _item(expect(item, dict, f"input.{index}", "an object"), f"input.{index}")
        if message is not None:
            messages.append(message)
    if not messages:
        raise ApiError(400, "input is empty; give at least one message", param="input")
    return messages


def _item(item: Mapping[str, Any], path: str) -> Message | None:
    kind = item.get("type", "message")
    if kind == "message":
        return _message(item, path)
    if kind == "reasoning":
        texts = [text_of(item.get(key), f"{path}.{key}", _thought) for key in ("content", "summary")]
        thought = next((t for t in texts if t), None)
        return {"role": "assistant", "content": "", "reasoning_content": thought} if thought else None
    if kind == "function_call":
        call = call_message(text_field(item, path, "name"), item.get("arguments"), item.get("call_id"))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        output = text_of(item.get("output"), f"{path}.output", part_text)
        return {"role": "tool", "content": output, "tool_call_id": text_field(item, path, "call_id")}
    raise ApiError(400, f"{path}.type is {shown(kind)}, which this server does not have", param=f"{path}.type")


def _message(item: Mapping[str, Any], path: str) -> Message:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        known = "assistant, developer, system, user"
        raise ApiError(400, f"{path}.role is {shown(role)}, but it must be one of {known}", param=f"{path}.role")
    if item.get("content") is None:
        raise ApiError(400, f"{path}.content is missing; it is required", param=f"{path}.content")
    content = text_of(item["content"], f"{path}.content", part_text)
    return {"role": "system" if role == "developer" else role, "content": content}


def _thought(part: Mapping[str, Any], path: str) -> str | None:
    if part.get("type") not in ("reasoning_text", "summary_text", "text"):
        raise refuse_part(part, path)
    return text_field(part, path)
