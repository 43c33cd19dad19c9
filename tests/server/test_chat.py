"""/v1/chat/completions over a socket: reasoning, tool calls, streams, usage, logprobs, stops, refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live import chunks
from openai.types.chat import ChatCompletion, ChatCompletionChunk

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
ARGUMENTS = {"city": 'Paris, "FR"', "days": 3}


def ask(script: int, **more: Any) -> dict[str, Any]:
    return {"model": "automaton", "messages": [{"role": "user", "content": f"{{S{script}}}"}], **more}


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream as the message it spells."""
    out: dict[str, Any] = {"reasoning": "", "text": "", "calls": [], "finish": []}
    for event in events:
        ChatCompletionChunk.model_validate(event, strict=True)
        for choice in event["choices"]:
            delta = choice["delta"]
            out["reasoning"] += delta.get("reasoning_content") or ""
            out["text"] += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    out["calls"].append([call["function"]["name"], ""])
                out["calls"][call["index"]][1] += call["function"]["arguments"]
            if choice["finish_reason"]:
                out["finish"].append(choice["finish_reason"])
    return out


def plain(body: dict[str, Any]) -> dict[str, Any]:
    ChatCompletion.model_validate(body, strict=True)
    (choice,) = body["choices"]
    message = choice["message"]
    calls = [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", ())]
    return {
        "reasoning": message.get("reasoning_content", ""),
        "text": message["content"] or "",
        "calls": calls,
        "finish": [choice["finish_reason"]],
    }


def both(live, body: dict[str, Any]) -> dict[str, Any]:
    """The answer, the same streamed and whole."""
    whole = live.post("/v1/chat/completions", body)
    assert whole.status_code == 200, whole.text
    streamed = live.post("/v1/chat/completions", {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    found = folded(chunks(streamed.text))
    assert found == plain(whole.json())
    return found


@pytest.mark.parametrize("max_draft", range(9))
def test_reasoning_and_text_are_told_apart_at_every_draft_width(live, max_draft: int) -> None:
    found = both(live, ask(1, max_draft=max_draft))
    assert found == {
        "reasoning": "I think so.\n", "text": "The answer is 42, naïve 🙂 reader!", "calls": [], "finish": ["stop"],
    }  # fmt: skip


@pytest.mark.parametrize("max_draft", range(9))
def test_a_call_after_text_is_typed_and_leaves_no_tag(live, max_draft: int) -> None:
    found = both(live, ask(2, tools=TOOLS, max_draft=max_draft))
    assert (found["reasoning"], found["text"], found["finish"]) == (
        "I need the weather\n",
        "Let me look.",
        ["tool_calls"],
    )
    ((name, arguments),) = found["calls"]
    assert (name, json.loads(arguments)) == ("get_weather", ARGUMENTS)


@pytest.mark.parametrize("max_draft", [0, 3, 8])
def test_a_call_inside_unclosed_reasoning_is_a_call(live, max_draft: int) -> None:
    found = both(live, ask(4, tools=TOOLS, max_draft=max_draft))
    assert (found["reasoning"].strip(), found["text"], found["finish"]) == (
        "Deep in thought about it",
        "",
        ["tool_calls"],
    )
    assert json.loads(found["calls"][0][1]) == {"city": 'Rome, "FR"', "days": 3}


def test_parallel_calls_and_the_wish_for_one(live) -> None:
    assert [c[0] for c in both(live, ask(5, tools=TOOLS))["calls"]] == ["f0", "f1"]
    single = both(live, ask(5, tools=TOOLS, parallel_tool_calls=False))
    assert ([c[0] for c in single["calls"]], single["finish"]) == (["f0"], ["tool_calls"])
    live.idle()


def test_without_tools_a_call_is_the_text_it_is(live) -> None:
    for body in (ask(2), ask(2, tools=TOOLS, tool_choice="none"), ask(2, tools=[])):
        found = both(live, body)
        assert "<tool_call>" in found["text"]
        assert (found["calls"], found["finish"]) == ([], ["stop"])


def test_a_whole_turn_with_a_tools_result(live) -> None:
    calls = [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]
    messages = [
        {"role": "user", "content": "{S2}"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "20 degrees"},
    ]
    found = both(live, {"model": "automaton", "messages": messages, "tools": TOOLS, "reasoning_effort": "none"})
    assert found["text"] == "It is 20 degrees in Paris (really)."


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"city": "Paris"}', 'city="Paris"'),
        ({"city": "Paris"}, 'city="Paris"'),
        ('{"city": ', 'arguments="{\\"city\\": "'),
        ("", "get_weather>"),
        (None, "get_weather>"),
        ("[1]", "arguments=[1]"),
    ],
)
def test_call_arguments_in_the_history_reach_the_template_as_objects(live, arguments: Any, rendered: str) -> None:
    from mlx_dspark.server.chat_completions import message
    from mlx_dspark.server.service import Chat

    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    given = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt = live.service.prompt(Chat([message(m, "m") for m in given]))
    assert rendered in live.service.pair.tokenizer.decode(prompt.ids)
    assert live.post("/v1/chat/completions", {"messages": given, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9, 12])
def test_an_answer_cut_by_the_limit_says_so(live, limit: int) -> None:
    found = both(live, ask(1, max_tokens=limit))
    whole = live.post("/v1/chat/completions", ask(1, max_completion_tokens=limit, max_tokens=400)).json()
    assert found["finish"] == ["length"]
    assert whole["usage"]["completion_tokens"] == limit
    assert "<" not in found["text"]


def test_a_call_cut_by_the_limit_is_no_finished_call(live) -> None:
    found = both(live, ask(2, tools=TOOLS, max_tokens=30))
    assert found["finish"] == ["length"]


def test_thinking_can_be_switched_off(live) -> None:
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        found = both(live, ask(0, **off))
        assert (found["reasoning"], found["text"]) == ("", "Fine.")
    assert both(live, ask(0))["reasoning"] == "Fine."
    doubled = both(live, ask(1, reasoning_effort="none"))
    assert doubled["text"].endswith("reader!")
    assert "think>" not in doubled["text"]


def test_usage_comes_once_and_only_if_asked_for(live) -> None:
    whole = live.post("/v1/chat/completions", ask(1)).json()["usage"]
    for options, count in (({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)):
        events = chunks(live.post("/v1/chat/completions", ask(1, stream=True, stream_options=options)).text)
        found = [e for e in events if e.get("usage")]
        assert len(found) == count
        assert all(e["choices"] and "usage" not in e for e in events if e not in found)
        if found:
            assert found[0]["choices"] == []
            assert found[0] is events[-1]
            usage = found[0]["usage"]
            assert {k: usage[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")} == {
                k: whole[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")
            }
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"]


def test_stop_strings_end_the_text_before_them(live) -> None:
    for stop in ("STOP", ["nothing", "STOP"]):
        found = both(live, ask(6, stop=stop, reasoning_effort="none"))
        assert (found["text"], found["finish"]) == ("alpha beta ", ["stop"])


def test_logprobs_cover_the_text_and_tops_are_sorted(live) -> None:
    body = ask(6, logprobs=True, top_logprobs=3, reasoning_effort="none", max_draft=4)
    whole = live.post("/v1/chat/completions", body).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    assert "".join(e["token"] for e in entries) == whole["choices"][0]["message"]["content"]
    assert all(
        len(e["top_logprobs"]) == 3 and e["top_logprobs"][0]["logprob"] >= e["top_logprobs"][1]["logprob"]
        for e in entries
    )
    assert all(e["logprob"] <= 0 and bytes(e["bytes"]).decode() == e["token"] for e in entries)
    events = chunks(live.post("/v1/chat/completions", {**body, "stream": True}).text)
    streamed = [e for c in events for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == entries


def test_the_reply_tells_what_drafting_did(live) -> None:
    drafted = live.post("/v1/chat/completions", ask(6, max_draft=4)).json()["mlx_dspark"]
    baseline = live.post("/v1/chat/completions", ask(6, mode="baseline")).json()["mlx_dspark"]
    assert drafted["mode"] == "dspark"
    assert drafted["accept_length"] > 2 > baseline["accept_length"] == 1
    assert (baseline["mode"], baseline["drafted"]) == ("baseline", 0)
    assert drafted["rounds"] < baseline["rounds"]
    assert drafted["tokens_per_second"] > 0
    assert drafted["first_token_seconds"] > 0


def test_rounds_can_be_streamed_token_by_token(live) -> None:
    events = chunks(
        live.post("/v1/chat/completions", ask(6, stream=True, stream_rounds=True, reasoning_effort="none")).text
    )
    tokens = [t for e in events for t in e.get("mlx_dspark", {}).get("tokens", ())]
    assert "".join(text for _, text, _ in tokens) == "alpha beta STOP gamma delta"
    assert {origin for _, _, origin in tokens} >= {"plain", "drafted"}
    rounds = [e["mlx_dspark"] for e in events if "committed" in e.get("mlx_dspark", {})]
    final = events[-1]["mlx_dspark"]
    assert len(rounds) == final["rounds"] + 1
    assert sum(r["proposed"] for r in rounds) == final["drafted"]
    assert all(r["accepted"] <= r["proposed"] and len(r["tokens"]) <= r["committed"] for r in rounds)
    later = sum(r["committed"] for r in rounds[1:])
    assert later / final["rounds"] == pytest.approx(final["accept_length"], abs=1e-3)
    silent = chunks(live.post("/v1/chat/completions", ask(6, stream=True)).text)
    assert all("mlx_dspark" not in e for e in silent[:-1]), "nothing of it unless asked for"


def test_a_reasoning_history_and_part_contents_are_read(live) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "system", "content": "c"},
        {"role": "user", "content": [{"type": "text", "text": "{S6}"}]},
        {"role": "assistant", "content": "x", "reasoning_content": "why"},
        {"role": "user", "content": "{S0}", "name": "me"},
    ]
    assert both(live, {"messages": messages})["reasoning"] == "Fine."


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"), ({"messages": None}, "messages"), ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages.0"), ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages.0.tool_calls.0.function.name"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"temperature": "0.5"}, "temperature"), ({"temperature": -1}, "temperature"), ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"), ({"top_p": 1.5}, "top_p"), ({"top_k": -2}, "top_k"), ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"), ({"seed": 1.5}, "seed"), ({"seed": "1"}, "seed"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 10**30}, "max_tokens"), ({"max_tokens": 2.0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"), ({"n": 2}, "n"), ({"n": 0}, "n"), ({"n": "1"}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"), ({"frequency_penalty": None, "presence_penalty": []}, "presence_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"1": 200}}, "logit_bias.1"), ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ""}, "stop"), ({"stop": ["a", ""]}, "stop.1"), ({"stop": [3]}, "stop.0"), ({"stop": ["a"] * 17}, "stop"), ({"stop": {}}, "stop"),
        ({"stream": "yes"}, "stream"), ({"stream_options": {"x": 1}}, "stream_options.x"),
        ({"tools": {}}, "tools"), ({"tools": [{"type": "web_search"}]}, "tools.0.type"), ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {"name": 3}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"guided_json": {}}, "guided_json"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {}}}}, "response_format"),
        ({"functions": [{}]}, "functions"), ({"audio": {}}, "audio"), ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "hard"}, "reasoning_effort"), ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"max_draft": 65}, "max_draft"), ({"max_draft": -1}, "max_draft"), ({"mode": "magic"}, "mode"), ({"mode": "lookup"}, "mode"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)  # fmt: skip
def test_bad_fields_are_refused_by_name(live, change: dict[str, Any], param: str) -> None:
    body = json.dumps({**ask(0), **change})
    reply = live.http.post("/v1/chat/completions", content=body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.rpartition(".")[2] in error["message"] or "messages" in param


@pytest.mark.parametrize(
    "fields",
    [
        *({"reasoning_effort": e} for e in ("none", "minimal", "low", "medium", "high", "xhigh")),
        {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": None, "tools": None, "stop": None},
        {"temperature": 0, "top_p": 0, "top_k": -1, "seed": -5, "n": 1},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 7, "presence_penalty": -2, "frequency_penalty": 2},
    ],
)  # fmt: skip
def test_known_fields_are_accepted(live, fields: dict[str, Any]) -> None:
    assert live.post("/v1/chat/completions", ask(0, **fields)).status_code == 200
