"""/v1/responses: items, events in order, what Codex sends and sends back; and /v1/completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

TOOLS = [
    {
        "type": "function", "name": "get_weather", "description": "Weather", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]  # fmt: skip
EVENT = TypeAdapter(ResponseStreamEvent)


def ask(script: int, **more: Any) -> dict[str, Any]:
    return {"model": "automaton", "input": f"{{S{script}}}", **more}


def events(text: str) -> list[dict[str, Any]]:
    found = [json.loads(b.split("\n")[1].removeprefix("data: ")) for b in text.split("\n\n") if b]
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    for event in found:
        EVENT.validate_python(event)
    return found


def items(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in response["output"]]


def both(live, body: dict[str, Any]) -> dict[str, Any]:
    reply = live.post("/v1/responses", body)
    assert reply.status_code == 200, reply.text
    Response.model_validate(reply.json())
    found = events(live.post("/v1/responses", {**body, "stream": True}).text)
    assert [e["type"] for e in found[:2]] == ["response.created", "response.in_progress"]
    last = found[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    assert items(last["response"]) == items(reply.json())
    done = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]
    grown = "".join(e["delta"] for e in found if e["type"] == "response.output_text.delta")
    assert grown == "".join(c["text"] for i in done if i["type"] == "message" for c in i["content"])
    return reply.json()


@pytest.mark.parametrize("max_draft", [0, 2, 8])
def test_reasoning_text_and_call_are_items_in_order(live, max_draft: int) -> None:
    response = both(live, ask(2, tools=TOOLS, max_draft=max_draft))
    assert [i["type"] for i in response["output"]] == ["reasoning", "message", "function_call"]
    assert response["output"][0]["content"][0]["text"] == "I need the weather\n"
    call = response["output"][2]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": 'Paris, "FR"', "days": 3})
    assert response["status"] == "completed"
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0


def test_what_codex_sends_and_sends_back(live) -> None:
    head = {
        "model": "automaton", "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {"a": "b"}, "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"summary": "auto"},
        "tools": [*TOOLS, {"type": "namespace", "name": "agents", "tools": [{**TOOLS[0], "name": "f0"}]},
                  {"type": "web_search", "external_web_access": False}],
    }  # fmt: skip
    history: list[dict[str, Any]] = [
        {"type": "message", "id": "m1", "role": "developer", "content": [{"type": "input_text", "text": "Be good."}]},
        {"type": "message", "id": "m2", "role": "user", "content": [{"type": "input_text", "text": "{S2}"}]},
    ]
    first = both(live, {**head, "input": history})
    call = first["output"][-1]
    history += first["output"]
    history.append({"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"})
    second = both(live, {**head, "input": history})
    assert (
        second["output"][-1]["content"][0]["text"].startswith("It is 20") or second["output"][0]["type"] == "reasoning"
    )
    namespaced = both(live, {**head, "input": "{S5}"})["output"]
    assert [(c["name"], c.get("namespace")) for c in namespaced] == [("f0", "agents"), ("f1", None)]


def test_limits_make_a_response_incomplete(live) -> None:
    response = both(live, ask(1, max_output_tokens=3))
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][-1]["status"] == "incomplete"


def test_instructions_and_no_reasoning(live) -> None:
    response = both(live, ask(6, instructions="Be brief.", reasoning={"effort": "none"}, temperature=0))
    assert response["output"][0]["content"][0]["text"] == "alpha beta STOP gamma delta"
    assert response["instructions"] == "Be brief."


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"), ({"input": []}, "input"), ({"input": 3}, "input"), ({"input": [3]}, "input.0"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0.type"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call", "arguments": "{}"}]}, "input.0.name"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"), ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools.0.type"), ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": {"effort": "hard"}}, "reasoning.effort"), ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "x"}, "temperature"), ({"messages": []}, "messages"),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include.1"), ({"include": "x"}, "include"),
    ],
)  # fmt: skip
def test_bad_fields_are_refused_by_name(live, change: dict[str, Any], param: str) -> None:
    reply = live.post("/v1/responses", {**ask(0), **change})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def completion(live, body: dict[str, Any]) -> dict[str, Any]:
    reply = live.post("/v1/completions", {"model": "automaton", **body})
    assert reply.status_code == 200, reply.text
    Completion.model_validate(reply.json(), strict=True)
    streamed = live.post("/v1/completions", {"model": "automaton", **body, "stream": True}).text.split("\n\n")
    assert streamed[-2:] == ["data: [DONE]", ""]
    parts = [json.loads(e.removeprefix("data: "))["choices"][0] for e in streamed[:-2]]
    choice = reply.json()["choices"][0]
    assert "".join(p["text"] for p in parts) == choice["text"]
    assert [p["finish_reason"] for p in parts if p["finish_reason"]] == [choice["finish_reason"]]
    return reply.json()


def test_completions_continue_texts_and_ids_as_they_are(live) -> None:
    expected = "alpha beta STOP gamma delta"
    for prompt in ("<|S6|>", ["<|S6|>"], [266], [[266]]):
        found = completion(live, {"prompt": prompt, "max_tokens": 100})
        assert found["choices"][0]["text"] == expected
        assert found["usage"]["prompt_tokens"] == 1
    assert "<tool_call>" in completion(live, {"prompt": "<|S2|>"})["choices"][0]["text"]
    assert completion(live, {"prompt": "<|S6|>", "stop": ["STOP"]})["choices"][0]["text"] == "alpha beta "
    assert completion(live, {"prompt": "<|S6|>", "max_tokens": 2})["choices"][0]["finish_reason"] == "length"


def test_completions_logprobs(live) -> None:
    found = completion(live, {"prompt": "<|S6|>", "logprobs": 2})["choices"][0]
    scores = found["logprobs"]
    assert "".join(scores["tokens"]) == found["text"]
    assert all(len(top) == 2 for top in scores["top_logprobs"])
    assert [found["text"][at:].startswith(t) for at, t in zip(scores["text_offset"], scores["tokens"], strict=True)]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"), ({"prompt": ["a", "b"]}, "prompt"), ({"prompt": [1.5]}, "prompt.0"), ({"prompt": ""}, "prompt"),
        ({"prompt": [10**9]}, "prompt.0"), ({"prompt": [True]}, "prompt.0"), ({"echo": True}, "echo"), ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"), ({"n": 3}, "n"), ({"logprobs": 6}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"), ({"prompt": {}}, "prompt"), ({"prompt": "\udc00"}, "prompt"),
    ],
)  # fmt: skip
def test_bad_completions_are_refused_by_name(live, change: dict[str, Any], param: str) -> None:
    reply = live.http.post("/v1/completions", content=json.dumps({"prompt": "x", **change}))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
