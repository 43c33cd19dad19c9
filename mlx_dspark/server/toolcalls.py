"""Tool calls as the model writes them, qwen3_coder XML, parsed while they come and typed by each tool's schema.

    <tool_call><function=NAME><parameter=P>VALUE</parameter>...</function></tool_call>

with newlines between. Text parameters stream; others wait for their end, as their JSON depends on the whole value.
Pure: text in, deltas out; the same deltas, concatenated, however the text was cut.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from mlx_dspark.server.deltas import CallArguments, CallBegun, CallEnded, Delta, Text

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, PARAMETER = re.compile(r"<function=([^>\n]*)>"), re.compile(r"<parameter=([^>\n]*)>")
END_FUNCTION = "</function>"
# A value ends at its own tag, or, where the model left that out, where the whole call does.
VALUE_END = re.compile(r"\n?(?:</parameter>|</function>\s*</tool_call>)")
VALUE_MAY_END = re.compile(r"\n?(?:</function>\s*)?(?:<[a-z_/]*)?\Z")


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolCalls:
    """`schemas` are the offered tools' JSON schemas by name; calls of other names are passed on, all text."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]):
        self._schemas = schemas
        self._buffer = ""
        self._step: Callable[[], bool] = self._outside
        self._index = -1
        self._properties: Mapping[str, Any] = {}
        self._kinds: frozenset[str] = frozenset()
        self._keys: set[str] = set()
        self._open_call = self._streaming = self._value_begun = self._repeated = self._trim = False
        self._out: list[Delta] = []
        self.completed = 0

    def push(self, text: str) -> list[Delta]:
        self._buffer += text
        while self._step():
            pass
        return self._take()

    def flush(self, closed: bool = True) -> list[Delta]:
        """No more text comes. A call that lacks only its end tags is whole if the model ended the answer (`closed`)."""
        if self._open_call:
            self._cut(closed)
        elif self._step == self._before_function:
            self._text(OPEN + self._buffer)
        elif self._index < 0 or self._buffer.strip():
            self._text(self._buffer)
        self._buffer = ""
        return self._take()

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _outside(self) -> bool:
        """Text before, between and after calls; newlines around a call are not text."""
        if self._trim:
            self._buffer = self._buffer.lstrip("\n")
            self._trim = not self._buffer
        found = self._buffer.find(OPEN)
        if found >= 0:
            self._text(self._buffer[:found].rstrip())
            return self._after(found + len(OPEN), self._before_function)
        keep = len(self._buffer) - _held(self._buffer, OPEN)
        keep = len(self._buffer[:keep].rstrip())
        self._text(self._buffer[:keep])
        self._buffer = self._buffer[keep:]
        return False

    def _before_function(self) -> bool:
        head, closing = FUNCTION.search(self._buffer), self._buffer.find(CLOSE)
        if closing >= 0 and (head is None or closing < head.start()):
            self._text(OPEN + self._buffer[: closing + len(CLOSE)])  # nothing to call: shown as it was written
            return self._after(closing + len(CLOSE), self._outside)
        if head is None:
            return False
        self._index += 1
        self._open_call = True
        self._properties, self._keys = _properties(self._schemas.get(head[1].strip())), set()
        self._out += [CallBegun(self._index, new_call_id(), head[1].strip()), CallArguments(self._index, "{")]
        return self._after(head.end(), self._between)

    def _between(self) -> bool:
        """After the function's head or a parameter: the next parameter, or the end."""
        head = PARAMETER.search(self._buffer)
        end, closing = self._buffer.find(END_FUNCTION), self._buffer.find(CLOSE)
        first = min((at for at in (end, closing) if at >= 0), default=-1)
        if head is not None and (first < 0 or head.start() < first):
            self._begin(head[1].strip())
            return self._after(head.end(), self._value)
        if first < 0:
            return False
        self._arguments("}")
        self._end(complete=True)
        if first == closing:
            return self._after(closing + len(CLOSE), self._outside)
        return self._after(end + len(END_FUNCTION), self._before_close)

    def _before_close(self) -> bool:
        """The function ended; its `</tool_call>` follows, or another function, or the answer ends without."""
        rest = self._buffer.lstrip()
        skipped = len(self._buffer) - len(rest)
        if rest.startswith(CLOSE):
            return self._after(skipped + len(CLOSE), self._outside)
        if rest.startswith("<function="):
            return self._after(skipped, self._before_function)
        if CLOSE.startswith(rest) or "<function=".startswith(rest):
            return False
        return self._after(0, self._outside)

    def _begin(self, name: str) -> None:
        self._kinds = _kinds(self._properties.get(name))
        self._repeated = name in self._keys
        comma = ", " if self._keys else ""
        self._keys.add(name)
        self._streaming = self._kinds <= {"string"} and not self._repeated
        self._value_begun = False
        if not self._repeated:
            self._arguments(f"{comma}{json.dumps(name, ensure_ascii=False)}: " + ('"' if self._streaming else ""))

    def _value(self) -> bool:
        """One newline after the head and one before the end belong to the notation, the rest to the value."""
        if not self._value_begun:
            if not self._buffer:
                return False
            self._buffer = self._buffer.removeprefix("\n")
            self._value_begun = True
        end = VALUE_END.search(self._buffer)
        if end is not None:
            self._close_value(self._buffer[: end.start()])
            own = end[0].endswith("</parameter>")
            return self._after(end.end() if own else end.start(), self._between)
        if self._streaming and (tail := VALUE_MAY_END.search(self._buffer)):
            self._stream(self._buffer[: tail.start()])
            self._buffer = self._buffer[tail.start() :]
        return False

    def _close_value(self, rest: str) -> None:
        if self._streaming:
            self._stream(rest)
            self._arguments('"')
        elif not self._repeated:
            self._arguments(json.dumps(typed(rest, self._kinds), ensure_ascii=False))

    def _cut(self, closed: bool) -> None:
        """The answer ended inside a call: what is sure of its arguments stays, and nothing is invented."""
        if closed and self._step == self._between:
            self._arguments("}")
            self._end(complete=True)
            return
        if self._step == self._value and self._streaming:
            self._stream(self._buffer)
        self._end(complete=False)

    def _end(self, complete: bool) -> None:
        self._out.append(CallEnded(self._index, complete))
        self._open_call, self._trim = False, True
        self.completed += complete

    def _after(self, at: int, step: Callable[[], bool]) -> bool:
        self._buffer = self._buffer[at:]
        self._step = step
        return True

    def _stream(self, text: str) -> None:
        if text:
            self._arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _arguments(self, text: str) -> None:
        self._out.append(CallArguments(self._index, text))

    def _text(self, text: str) -> None:
        if text:
            self._out.append(Text(text))


def typed(value: str, kinds: frozenset[str]) -> Any:
    """A parameter's text as the first JSON type its schema allows; text where none fits."""
    text = value.strip()
    if "null" in kinds and text.lower() in ("null", "none"):
        return None
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind, fits in _FITS:
        if kind in kinds:
            try:
                found = json.loads(text, parse_constant=_refuse)
            except (ValueError, RecursionError):
                continue
            if fits(found):
                return int(found) if kind == "integer" else found
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_FITS: tuple[tuple[str, Any], ...] = (
    ("integer", lambda v: _number(v) and v == int(v)),
    ("number", _number),
    ("object", lambda v: isinstance(v, dict)),
    ("array", lambda v: isinstance(v, list)),
    ("any", lambda v: True),
)


def _properties(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found = (schema or {}).get("properties")
    return found if isinstance(found, Mapping) else {}


def _kinds(schema: Any) -> frozenset[str]:
    """The JSON types a parameter's schema allows; empty (text) where the tool does not describe it."""
    if not isinstance(schema, Mapping):
        return frozenset()
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for key in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(key) or ():
            kinds |= _kinds(part)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if not kinds and values:
        kinds = {_NAMES.get(type(value), "any") for value in values}
    if not kinds and "$ref" in schema:
        kinds = {"any"}
    return frozenset(str(k) for k in kinds)


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _held(text: str, word: str) -> int:
    """Length of the longest tail of `text` that `word` begins with."""
    for size in range(min(len(text), len(word) - 1), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0
