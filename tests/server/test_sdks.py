"""The official SDKs drive the server over a socket, as their users do."""

from __future__ import annotations

import json

import anthropic
import openai
import pytest

FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}
ARGUMENTS = {"city": 'Paris, "FR"', "days": 3}


@pytest.fixture
def gpt(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def claude(live):
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def user(script: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{{S{script}}}"}]


def test_openai_chat(gpt) -> None:
    done = gpt.chat.completions.create(model="automaton", messages=user(1), temperature=0, seed=1)
    assert done.choices[0].message.content == "The answer is 42, naïve 🙂 reader!"
    assert done.choices[0].message.reasoning_content == "I think so.\n"
    assert done.usage.prompt_tokens_details.cached_tokens >= 0
    assert [m.id for m in gpt.models.list()] == ["automaton"]
    assert gpt.models.retrieve("automaton").id == "automaton"


def test_openai_chat_streams(gpt) -> None:
    options = {"include_usage": True}
    parts = list(gpt.chat.completions.create(model="automaton", messages=user(1), stream=True, stream_options=options))
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices).startswith("The answer is 42")
    assert parts[-1].usage.total_tokens > 0
    with gpt.chat.completions.stream(
        model="automaton", messages=user(2), tools=[{"type": "function", "function": FUNCTION}]
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "tool_calls.function.arguments.delta"} <= {e.type for e in events}
    call = final.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert final.choices[0].finish_reason == "tool_calls"


def test_openai_tool_loop(gpt) -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    messages = user(2)
    first = gpt.chat.completions.create(model="automaton", messages=messages, tools=tools).choices[0].message
    messages += [first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "20 degrees"}]
    second = gpt.chat.completions.create(model="automaton", messages=messages, tools=tools, reasoning_effort="none")
    assert second.choices[0].message.content == "It is 20 degrees in Paris (really)."


def test_openai_completions(gpt) -> None:
    assert gpt.completions.create(model="automaton", prompt="<|S6|>").choices[0].text.endswith("delta")
    parts = gpt.completions.create(model="automaton", prompt="<|S6|>", stream=True, max_tokens=5)
    assert "alpha beta STOP".startswith("".join(p.choices[0].text for p in parts))


def test_openai_responses(gpt) -> None:
    done = gpt.responses.create(model="automaton", input="{S1}")
    assert done.output_text == "The answer is 42, naïve 🙂 reader!"
    tools = [{"type": "function", **FUNCTION}]
    with gpt.responses.stream(model="automaton", input="{S2}", tools=tools) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    call = final.output[-1]
    assert json.loads(call.arguments) == ARGUMENTS
    history = [{"role": "user", "content": "{S2}"}, *final.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "20"})
    follow = gpt.responses.create(model="automaton", input=history, tools=tools, reasoning={"effort": "none"})
    assert follow.output_text == "It is 20 degrees in Paris (really)."


def test_openai_responses_events(gpt) -> None:
    with gpt.responses.stream(model="automaton", input="{S1}", extra_body={"max_draft": 3}) as stream:
        events = list(stream)
    texts = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(texts) == "The answer is 42, naïve 🙂 reader!"
    raw = gpt.responses.create(model="automaton", input="{S1}", stream=True, max_output_tokens=4)
    last = list(raw)[-1]
    assert (last.type, last.response.incomplete_details.reason) == ("response.incomplete", "max_output_tokens")


def test_openai_errors(gpt) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4o"):
        gpt.chat.completions.create(model="gpt-4o", messages=user(0))
    with pytest.raises(openai.BadRequestError) as refused:
        gpt.chat.completions.create(model="automaton", messages=user(0), n=2)
    assert refused.value.param == "n"


def test_anthropic_messages(claude) -> None:
    done = claude.messages.create(model="automaton", max_tokens=500, messages=user(6), stop_sequences=["STOP"])
    assert (done.content[0].text, done.stop_reason, done.stop_sequence) == ("alpha beta ", "stop_sequence", "STOP")
    assert [m.id for m in claude.models.list()] == ["automaton"]
    counted = claude.messages.count_tokens(model="automaton", messages=user(6))
    assert counted.input_tokens == done.usage.input_tokens + done.usage.cache_read_input_tokens


def test_anthropic_streams_thinking_and_tools(claude) -> None:
    tools = [{"name": "get_weather", "description": "w", "input_schema": FUNCTION["parameters"]}]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    with claude.messages.stream(
        model="automaton", max_tokens=2000, messages=user(2), tools=tools, thinking=thinking
    ) as stream:
        kinds = {e.type for e in stream}
        final = stream.get_final_message()
    assert {"thinking", "text", "input_json", "message_stop"} <= kinds
    assert [b.type for b in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == ARGUMENTS
    messages = [*user(2), {"role": "assistant", "content": final.content}]
    result = {"type": "tool_result", "tool_use_id": final.content[2].id, "content": "20"}
    messages.append({"role": "user", "content": [result]})
    follow = claude.messages.create(model="automaton", max_tokens=500, messages=messages, tools=tools)
    assert follow.content[0].text == "It is 20 degrees in Paris (really)."


def test_anthropic_counts_what_tools_and_thinking_add(claude) -> None:
    tools = [{"name": "get_weather", "description": "w", "input_schema": FUNCTION["parameters"]}]
    bare = claude.messages.count_tokens(model="automaton", messages=user(2)).input_tokens
    more = claude.messages.count_tokens(
        model="automaton", messages=user(2), tools=tools, system="Be brief.", thinking={"type": "adaptive"}
    ).input_tokens
    done = claude.messages.create(
        model="automaton",
        max_tokens=9,
        messages=user(2),
        tools=tools,
        system="Be brief.",
        thinking={"type": "adaptive"},
    )
    assert bare < more == done.usage.input_tokens + done.usage.cache_read_input_tokens


def test_anthropic_errors(claude) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude-x", max_tokens=5, messages=user(0))
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        claude.messages.create(model="automaton", max_tokens=5, messages=user(0), tool_choice={"type": "any"})
