"""/v1/messages and count_tokens: blocks, events, usage, thinking, tools, and what Claude Code sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

TOOLS = [
    {
        "name": "get_weather",
        "description": "Weather",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]
EVENT = TypeAdapter(RawMessageStreamEvent)


def ask(script: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "automaton",
        "max_tokens": 4000,
        "messages": [{"role": "user", "content": f"{{S{script}}}"}],
        **more,
    }


def events(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        if block:
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
    return found


def folded(found: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as the message it spells; checks that blocks open and close in order."""
    message: dict[str, Any] = {}
    partial: dict[int, str] = {}
    for event in found:
        if event["type"] == "ping":
            continue
        EVENT.validate_python(event)
        if event["type"] == "message_start":
            message = event["message"]
        elif event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1
            block, delta = message["content"][-1], event["delta"]
            for key in ("text", "thinking", "signature"):
                if key in delta:
                    block[key] += delta[key]
            if "partial_json" in delta:
                partial[event["index"]] = partial.get(event["index"], "") + delta["partial_json"]
        elif event["type"] == "content_block_stop":
            if event["index"] in partial:
                message["content"][event["index"]]["input"] = json.loads(partial[event["index"]])
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] = {**message["usage"], **event["usage"]}
    assert [e["type"] for e in found].count("message_stop") == 1
    assert found[-1]["type"] == "message_stop"
    return message


def both(live, body: dict[str, Any]) -> dict[str, Any]:
    whole = live.post("/v1/messages", body)
    assert whole.status_code == 200, whole.text
    Message.model_validate(whole.json(), strict=True)
    streamed = folded(events(live.post("/v1/messages", {**body, "stream": True}).text))
    for message in (whole.json(), streamed):
        for block in message["content"]:
            block.pop("id", None)
    assert (
        streamed["content"] == whole.json()["content"]
        or [{k: v for k, v in b.items() if k != "id"} for b in whole.json()["content"]] == streamed["content"]
    )
    assert streamed["stop_reason"] == whole.json()["stop_reason"]
    assert streamed["usage"]["output_tokens"] == whole.json()["usage"]["output_tokens"]
    return streamed


@pytest.mark.parametrize("max_draft", [0, 1, 3, 8])
def test_thinking_text_and_a_call_are_blocks_in_order(live, max_draft: int) -> None:
    message = both(live, ask(2, tools=TOOLS, thinking={"type": "enabled", "budget_tokens": 1024}, max_draft=max_draft))
    kinds = [b["type"] for b in message["content"]]
    assert kinds == ["thinking", "text", "tool_use"]
    assert message["content"][0]["thinking"] == "I need the weather\n"
    assert message["content"][0]["signature"]
    assert message["content"][2]["input"] == {"city": 'Paris, "FR"', "days": 3}
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


def test_a_call_inside_unclosed_thinking(live) -> None:
    message = both(live, ask(4, tools=TOOLS, thinking={"type": "adaptive"}, output_config={"effort": "high"}))
    assert [b["type"] for b in message["content"]] == ["thinking", "tool_use"]
    assert message["stop_reason"] == "tool_use"


def test_parallel_calls_and_the_wish_for_one(live) -> None:
    two = both(live, ask(5, tools=TOOLS))
    assert [b["name"] for b in two["content"]] == ["f0", "f1"]
    one = both(live, ask(5, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    assert [b["name"] for b in one["content"]] == ["f0"]
    none = both(live, ask(5, tools=TOOLS, tool_choice={"type": "none"}))
    assert [b["type"] for b in none["content"]] == ["text"]


def test_thinking_is_off_unless_asked_for(live) -> None:
    for more in ({}, {"thinking": {"type": "disabled"}}):
        assert both(live, ask(0, **more))["content"] == [{"type": "text", "text": "Fine."}]


def test_stops_are_told_apart(live) -> None:
    stopped = both(live, ask(6, stop_sequences=["zzz", "STOP"]))
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "STOP")
    assert stopped["content"] == [{"type": "text", "text": "alpha beta "}]
    cut = both(live, ask(6, max_tokens=2))
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)


def test_a_whole_agent_turn(live) -> None:
    body = ask(2, tools=TOOLS)
    answer = live.post("/v1/messages", body).json()
    use = answer["content"][-1]
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "20"}]}
    extra = {"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}}
    messages = [*body["messages"], {"role": "assistant", "content": answer["content"]}]
    follow = both(live, {**body, "messages": [*messages, {"role": "user", "content": [result]}]})
    assert follow["content"] == [{"type": "text", "text": "It is 20 degrees in Paris (really)."}]
    again = live.post("/v1/messages", {**body, "messages": [*messages, {"role": "user", "content": [result, extra]}]})
    assert again.status_code == 200


def test_an_answer_can_be_begun_by_the_client(live) -> None:
    messages = [{"role": "user", "content": "{S0}"}, {"role": "assistant", "content": "It is "}]
    reply = live.post("/v1/messages", ask(0, messages=messages))
    assert reply.status_code == 200
    prompt = live.post("/v1/messages/count_tokens", {"messages": messages}).json()["input_tokens"]
    shorter = live.post("/v1/messages/count_tokens", {"messages": messages[:1]}).json()["input_tokens"]
    assert prompt == shorter + len("It is")


def test_count_tokens_is_the_prompts_length(live) -> None:
    body = ask(1, tools=TOOLS, system=[{"type": "text", "text": "Be brief."}])
    usage = live.post("/v1/messages", body).json()["usage"]
    counted = live.post("/v1/messages/count_tokens", {k: v for k, v in body.items() if k != "max_tokens"})
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


def test_the_line_that_changes_with_every_request_is_left_out(serve) -> None:
    live = serve()
    usages = []
    for word in ("abc", "xyz"):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={word};"},
            {"type": "text", "text": "You are an agent. " * 20},
        ]
        usages.append(live.post("/v1/messages?beta=true", ask(0, system=system)).json()["usage"])
    assert usages[0]["cache_read_input_tokens"] == 0
    assert usages[1]["cache_read_input_tokens"] > 0.9 * usages[0]["input_tokens"]


def test_what_claude_code_sends_is_accepted(live) -> None:
    body = ask(
        0,
        stream=True,
        metadata={"user_id": "x"},
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "{S0}"}]},
            {"role": "system", "content": "agents"},
        ],
    )
    assert live.http.head("/").status_code == 200
    assert folded(events(live.post("/v1/messages?beta=true", body).text))["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": "x"}]}]}, "input"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"), ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"), ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"), ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "budget_tokens"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"), ({"system": 3}, "system"),
        ({"stop_sequences": [""]}, "stop_sequences"), ({"temperature": 9}, "temperature"), ({"container": "x"}, "container"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
)  # fmt: skip
def test_bad_fields_are_refused_by_name(live, change: dict[str, Any], word: str) -> None:
    body = {k: v for k, v in {**ask(0), **change}.items() if v is not None}
    reply = live.post("/v1/messages", body)
    assert reply.status_code == 400
    error = reply.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert word in error["error"]["message"]
    assert reply.headers["request-id"]
