"""qwen3_coder tool calls: typed by schema, the same however the text is cut, nothing lost and nothing invented."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.server.deltas import CallArguments, CallBegun, CallEnded, Text
from mlx_dspark.server.toolcalls import ToolCalls, typed

SCHEMAS = {
    "f": {
        "type": "object",
        "properties": {
            "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
            "o": {"type": "object"}, "a": {"type": "array"}, "m": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "e": {"enum": ["x", "y"]},
        },
    },
    "empty": {},
}  # fmt: skip


def call(name: str, **values: str) -> str:
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def parse(text: str, cuts: list[int] | None = None, closed: bool = True) -> tuple[str, list[tuple[str, str, bool]]]:
    """(text outside calls, calls as (name, arguments JSON, complete)), pushed in pieces cut at `cuts`."""
    parser = ToolCalls(SCHEMAS)
    borders = [0, *sorted(cuts or []), len(text)]
    deltas = [d for a, b in itertools.pairwise(borders) for d in parser.push(text[a:b])]
    deltas += parser.flush(closed)
    shown, calls = "", []
    for delta in deltas:
        if isinstance(delta, Text):
            shown += delta.text
        elif isinstance(delta, CallBegun):
            calls.append([delta.name, "", None])
        elif isinstance(delta, CallArguments):
            calls[delta.index][1] += delta.text
        elif isinstance(delta, CallEnded):
            calls[delta.index][2] = delta.complete
    return shown, [tuple(c) for c in calls]


def arguments(text: str) -> dict[str, object]:
    ((_, found, complete),) = parse(text)[1]
    assert complete
    return json.loads(found)


def test_values_take_the_types_of_the_schema() -> None:
    found = arguments(
        call("f", s="5", i="5", n="2.5", b="True", o='{"k": [1]}', a="[1, null]", m="null", e="x", other="7")
    )
    assert found == {
        "s": "5", "i": 5, "n": 2.5, "b": True, "o": {"k": [1]}, "a": [1, None], "m": None, "e": "x", "other": "7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kinds", "expected"),
    [
        ("5.0", {"integer"}, 5), ("5.5", {"integer"}, "5.5"), ("1e999", {"number"}, "1e999"), ("NaN", {"number"}, "NaN"),
        ("yes", {"boolean"}, "yes"), ("[1", {"array"}, "[1"), ("{}", {"array"}, "{}"), ("x", {"string", "null"}, "x"),
        ("None", {"integer", "null"}, None), ("true", {"integer"}, "true"), ("[" * 9999, {"array"}, "[" * 9999),
    ],
)  # fmt: skip
def test_what_does_not_fit_stays_text(value: str, kinds: set[str], expected: object) -> None:
    assert typed(value, frozenset(kinds)) == expected


def test_text_keeps_its_newlines_quotes_and_tags() -> None:
    value = '\n  def f():\n    return "</p>\\" < 3\n\n'
    assert arguments(call("f", s=value))["s"] == value
    assert arguments(call("f", s="</function> is no end"))["s"] == "</function> is no end"
    assert arguments(call("f", s=""))["s"] == ""


def test_text_around_calls_is_kept_and_newlines_at_their_borders_are_not() -> None:
    text = f"Let me see.\n\n{call('f', i='1')}\n{call('empty')}\nDone."
    shown, calls = parse(text)
    assert shown == "Let me see.Done."
    assert [(n, json.loads(a), c) for n, a, c in calls] == [("f", {"i": 1}, True), ("empty", {}, True)]
    assert parse("no call at all \n") == ("no call at all \n", [])


def test_sloppy_endings_are_understood() -> None:
    for text in (
        "<tool_call><function=f><parameter=i>1</parameter></function></tool_call>",
        "<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n",
        "<tool_call>\n<function=f>\n<parameter=i>\n1\n</function>\n</tool_call>",
    ):
        assert parse(text) == ("", [("f", '{"i": 1}', True)]), text


def test_two_functions_in_one_call_and_a_call_without_any() -> None:
    text = "<tool_call><function=f></function><function=empty></function></tool_call>"
    assert parse(text) == ("", [("f", "{}", True), ("empty", "{}", True)])
    assert parse("<tool_call>hm</tool_call>") == ("<tool_call>hm</tool_call>", [])
    assert parse("<tool_call>hm") == ("<tool_call>hm", [])


def test_a_cut_call_is_marked_and_keeps_what_is_sure() -> None:
    whole = call("f", s="abc", i="12")
    inside = parse(whole[: whole.index("bc")], closed=False)
    assert inside == ("", [("f", '{"s": "a', False)])
    assert parse(whole[: whole.index("2\n")], closed=False) == ("", [("f", '{"s": "abc", "i": ', False)])
    assert parse(whole[: whole.index("</function>")], closed=False)[1][0][2] is False


@given(st.data())
def test_cuts_change_nothing(data: st.DataObject) -> None:
    pieces = ["a <b\n", "<tool", "\n\n", call("f", s="x</par\n", n="1"), call("f", s="</function>\n"), call("g", z="\n"),
              "<tool_call>\n<function=f>\n<parameter=s>\nq\n</function>\n</tool_call>", "</think>"]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=5)))
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    closed = data.draw(st.booleans())
    assert parse(text, cuts, closed) == parse(text, None, closed) == parse(text, list(range(len(text))), closed)
