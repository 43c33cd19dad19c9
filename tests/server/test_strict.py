"""Every body and event passes the official SDKs' own models, strictly, and holds no key they lack but ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from live import asked
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

# `store` and the name of finished arguments are in OpenAI's own answers, but not in every version of the SDK's models.
OURS = {"mlx_dspark", "reasoning_content", "store", "name"}
TEXT_MODELS = {
    "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
    "/v1/completions": (Completion, Completion),
    "/v1/responses": (Response, ResponseStreamEvent),
    "/v1/messages": (Message, RawMessageStreamEvent),
}


def extras(value: Any) -> set[str]:
    """Keys no model knows, anywhere inside."""
    if isinstance(value, BaseModel):
        found = set(value.model_extra or {})
        return found.union(*(extras(getattr(value, name)) for name in type(value).model_fields))
    if isinstance(value, (list, tuple)):
        return set().union(*(extras(v) for v in value))
    return set()


def check(kind: Any, data: Any) -> None:
    assert extras(TypeAdapter(kind).validate_json(json.dumps(data), strict=True)) <= OURS, data


@pytest.mark.parametrize("path", TEXT_MODELS)
def test_bodies_and_events_pass_strict_models(live, path: str) -> None:
    whole, event = TEXT_MODELS[path]
    for script, limit, tools in (
        (1, None, False),
        (2, None, True),
        (5, None, True),
        (4, None, True),
        (1, 4, False),
        (2, 30, True),
    ):
        more: dict[str, Any] = {}
        if path == "/v1/chat/completions":
            more = {"logprobs": True, "top_logprobs": 2}
        body = {**asked(path, script, limit, tools), **more}
        reply = live.post(path, body)
        assert reply.status_code == 200, reply.text
        check(whole, reply.json())
        if "completions" in path:
            body["stream_options"] = {"include_usage": True}
        for line in live.post(path, {**body, "stream": True}).text.split("\n"):
            if line.startswith("data: {"):
                data = json.loads(line.removeprefix("data: "))
                if path == "/v1/completions":  # the SDK has no model of chunks, whose finish is null until the last
                    for choice in data["choices"]:
                        choice["finish_reason"] = choice["finish_reason"] or "stop"
                check(event, data)


def test_models_and_counts_pass_strict_models(live) -> None:
    dated = {"anthropic-version": "2023-06-01"}
    check(ModelInfo, live.http.get("/v1/models/automaton", headers=dated).json())
    own = live.http.get("/v1/models/automaton").json()
    assert extras(Model.model_validate(own, strict=True)) == {"context_window", "max_model_len"}
    check(MessageTokensCount, live.post("/v1/messages/count_tokens", asked("/v1/messages", 1, None, True)).json())
