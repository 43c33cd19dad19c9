"""Chat contents as the checkpoint's template wants them: plain texts, call arguments as objects, one role a message.

Pure. Whatever a client sends is checked by hand here, so that a refusal can name the exact place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_dspark.server.errors import ApiError
from mlx_dspark.server.schema import shown

Message = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function the model may call; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def expect(value: Any, kind: type, path: str, what: str) -> Any:
    """`value` if it is of `kind`, else ApiError."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ApiError(400, f"{path} must be {what} (it is {shown(value)})", param=path)
    return value


def text_of(content: Any, path: str, part: Callable[[Mapping[str, Any], str], str | None]) -> str:
    """A content's text: a string, or a list of parts joined by newlines. `part` gives a part's text, None for none."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    expect(content, list, path, "a string or a list of content parts")
    texts = []
    for index, item in enumerate(content):
        place = f"{path}.{index}"
        found = item if isinstance(item, str) else part(expect(item, dict, place, "an object"), place)
        if found is not None:
            texts.append(found)
    return "\n".join(texts)


def text_field(item: Mapping[str, Any], path: str, name: str = "text") -> str:
    return str(expect(item.get(name), str, f"{path}.{name}", "a string"))


def refuse_part(item: Mapping[str, Any], path: str) -> ApiError:
    """For a content part that is no text: images, files and sound are named as such."""
    kind = shown(item.get("type"))
    return ApiError(
        400, f"{path} is of type {kind}, but this model reads text only; leave it out", param=f"{path}.type"
    )


def arguments_of(value: Any) -> dict[str, Any]:
    """Call arguments as an object: clients send JSON text. What is no object stays readable under one key."""
    if isinstance(value, dict):
        return value
    if value in (None, ""):
        return {}
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = value
    return found if isinstance(found, dict) else {"arguments": found}


def call_message(name: str, arguments: Any, call_id: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments_of(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def tool_of(name: Any, description: Any, parameters: Any, path: str) -> Tool:
    expect(name, str, f"{path}.name", "a string")
    if not name or any(c in name for c in "<>\n"):
        raise ApiError(400, f"{path}.name is {shown(name)}, but it must be a plain name", param=f"{path}.name")
    if description is not None:
        expect(description, str, f"{path}.description", "a string")
    if parameters is not None:
        expect(parameters, dict, f"{path}.parameters", "a JSON schema object")
    return Tool(name, description or "", parameters or {"type": "object", "properties": {}})


def turns(messages: Sequence[Message]) -> list[Message]:
    """Leading system messages as one, and neighbouring assistant messages as one turn."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else None
        if last and message["role"] == last["role"] == "system" and len(out) == 1:
            last["content"] = "\n\n".join(t for t in (last["content"], message["content"]) if t)
        elif last and message["role"] == last["role"] == "assistant":
            _join(last, message)
        else:
            out.append(dict(message))
    return out


def _join(last: Message, message: Message) -> None:
    last["content"] = "\n".join(t for t in (last["content"], message["content"]) if t)
    for key, glue in (("reasoning_content", "\n"), ("tool_calls", None)):
        if message.get(key):
            both = [v for v in (last.get(key), message[key]) if v]
            last[key] = glue.join(both) if glue else [call for calls in both for call in calls]
