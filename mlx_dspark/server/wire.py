"""JSON and server-sent events as bytes, both ways; nothing a client sends may raise anything but ApiError."""

from __future__ import annotations

import json
from typing import Any

from mlx_dspark.server.errors import ApiError


def encode(value: Any) -> bytes:
    """JSON in UTF-8; a lone surrogate becomes its escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", errors="backslashreplace")


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body. ApiError 400 says what else it is."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8 (byte {error.start}); send JSON in UTF-8") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply; flatten it") from None
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON ({error}); send a JSON object") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is {_name(value)}, but it must be a JSON object")
    return value


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _name(value: Any) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
