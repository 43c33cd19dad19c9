"""Exactly one ending, of the right kind, on every dialect, streamed or not, wherever the end falls inside a block."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live import CALL, asked


def ended(path: str, body: dict[str, Any]) -> str:
    """How a whole answer says it ended."""
    if path == "/v1/messages":
        return str(body["stop_reason"])
    if path == "/v1/responses":
        return str(body["status"])
    return str(body["choices"][0]["finish_reason"])


def endings(path: str, text: str) -> list[str]:
    """Every terminal event of a stream, in order; the events after them must be none but usage and [DONE]."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert data[-1] == "[DONE]"
        assert data.count("[DONE]") == 1
        found = [c["finish_reason"] for d in data[:-1] for c in json.loads(d)["choices"]]
        assert found[-1] is not None
        return [f for f in found if f is not None]
    events = [json.loads(d) for d in data]
    if path == "/v1/messages":
        assert [e["type"] for e in events].count("message_stop") == 1
        assert events[-1]["type"] == "message_stop"
        return [e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"]
    done = [
        e["response"]["status"]
        for e in events
        if e["type"] in ("response.completed", "response.incomplete", "response.failed")
    ]
    assert events[-1]["type"] == f"response.{done[-1]}"
    return done


WORDS = {
    "/v1/chat/completions": {"stop": "stop", "length": "length", "call": "tool_calls"},
    "/v1/completions": {"stop": "stop", "length": "length"},
    "/v1/responses": {"stop": "completed", "length": "incomplete", "call": "completed"},
    "/v1/messages": {"stop": "end_turn", "length": "max_tokens", "call": "tool_use"},
}


@pytest.mark.parametrize("max_draft", range(9))
@pytest.mark.parametrize("path", WORDS)
def test_one_ending_and_the_right_one(live, path: str, max_draft: int) -> None:
    cases = [
        (6, None, False, "stop"),
        (1, 3, False, "length"),
        (6, 8, False, "length"),
        (2, None, True, "call"),
        (4, None, True, "call"),
    ]
    for script, limit, tools, word in cases:
        expected = WORDS[path].get(word)
        if expected is None:
            continue
        body = {**asked(path, script, limit, tools), "max_draft": max_draft}
        whole = live.post(path, body)
        assert whole.status_code == 200, whole.text
        assert ended(path, whole.json()) == expected
        assert endings(path, live.post(path, {**body, "stream": True}).text) == [expected]


@pytest.mark.parametrize("limit", range(1, 11))
def test_limits_inside_a_block_are_those_of_plain_decoding(live, limit: int) -> None:
    answers = []
    for max_draft in (0, 2, 8):
        body = {"prompt": "<|S0|>", "max_tokens": limit, "max_draft": max_draft}
        reply = live.post("/v1/completions", body).json()
        answers.append((reply["choices"][0], reply["usage"]["completion_tokens"]))
        assert reply["usage"]["completion_tokens"] <= limit
    assert answers[0] == answers[1] == answers[2]
    assert CALL not in answers[0][0]["text"]


ON = [None, "minimal", "low", "medium", "high", "xhigh", "max"]


@pytest.mark.parametrize("effort", [*ON, "none"])
def test_effort_switches_thinking_on_or_off_in_openais_dialects(live, effort: str | None) -> None:
    ask = {"messages": [{"role": "user", "content": "{S0}"}], "reasoning_effort": effort}
    message = live.post("/v1/chat/completions", ask).json()["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content")) == (
        ("Fine.", None) if effort == "none" else ("", "Fine.")
    )
    for more in ({}, {"summary": "auto"}, {"summary": None}):
        reply = live.post("/v1/responses", {"input": "{S0}", "reasoning": {"effort": effort, **more}}).json()
        kinds = [item["type"] for item in reply["output"]]
        assert kinds == (["message"] if effort == "none" else ["reasoning"])


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, False), ({"thinking": {"type": "disabled"}}, False), ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, True),
        ({"thinking": {"type": "adaptive"}}, True), ({"thinking": {"type": "adaptive", "display": "summarized"}}, True),
        *(({"thinking": {"type": "adaptive"}, "output_config": {"effort": e}}, True) for e in ("low", "medium", "high", "xhigh", "max")),
        ({"output_config": {"effort": "high"}}, False), ({"thinking": None, "output_config": None}, False),
    ],
)  # fmt: skip
def test_thinking_and_effort_in_anthropics(live, fields: dict[str, Any], thinks: bool) -> None:
    body = {"messages": [{"role": "user", "content": "{S0}"}], "max_tokens": 50, **fields}
    reply = live.post("/v1/messages", body)
    assert reply.status_code == 200, reply.text
    assert [b["type"] for b in reply.json()["content"]] == (["thinking"] if thinks else ["text"])
