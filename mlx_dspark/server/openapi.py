"""A trimmed OpenAPI description of the served routes: fields every client uses, with the limits that hold.

What it calls valid is answered, what it rules out is refused; the full lists of fields are in docs/server.md.
"""

from __future__ import annotations

from typing import Any

from mlx_dspark.server.service import Service
from mlx_dspark.version import __version__

TEXT = {"type": "string"}
NUMBERS: dict[str, Any] = {
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": -1, "maximum": 2**31 - 1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "seed": {"type": "integer"},
    "stream": {"type": "boolean"},
}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}
PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"type": "string", "enum": ["text"]}, "text": TEXT},
}
TEXTS = {"anyOf": [TEXT, {"type": "array", "items": PART}]}
STOP = {"type": "string", "minLength": 1, "maxLength": 1000}
STOPS = {"type": "array", "items": STOP, "maxItems": 16}


def openapi(service: Service) -> dict[str, Any]:
    """The description as JSON, with this server's model names."""
    model = {"type": "string", "enum": list(service.names)}
    secured: dict[str, Any] = {"security": [{"bearer": []}, {"key": []}]} if service.options.api_key else {}
    return {
        "openapi": "3.0.3",
        "info": {"title": "mlx-dspark", "version": __version__},
        "paths": {
            "/health": {"get": _operation("Is the server well?", _json({"type": "object"}))},
            "/metrics": {"get": _operation("Prometheus figures.", {"text/plain": {"schema": {"type": "string"}}})},
            "/v1/models": {"get": _operation("The models served.", _json(_object(["data"], data={"type": "array"})))},
            "/v1/chat/completions": {"post": _post("Chat, OpenAI's.", _chat(model), "choices")},
            "/v1/completions": {
                "post": _post("Text, OpenAI's.", _completion(model, service.pair.target.vocab_size), "choices")
            },
            "/v1/responses": {"post": _post("Responses, OpenAI's.", _responses(model), "output")},
            "/v1/messages": {"post": _post("Messages, Anthropic's.", _messages(model), "content")},
            "/v1/messages/count_tokens": {
                "post": _post("How long a prompt is.", _counted(model), "input_tokens", stream=False)
            },
        },
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            }
        },
        **secured,
    }


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _closed(required: list[str], **properties: Any) -> dict[str, Any]:
    """A body with these fields and no others; null leaves out what is not required."""
    for name, schema in properties.items():
        if name not in required:
            more = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
            properties[name] = {**schema, "nullable": True, **more}
    return {**_object(required, **properties), "additionalProperties": False}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "Yes.", "content": content}, **_refusals()}}


def _post(summary: str, body: dict[str, Any], key: str, stream: bool = True) -> dict[str, Any]:
    events = {"text/event-stream": {"schema": _object(["data"], data={"type": "string"})}} if stream else {}
    whole = _json(_object([key], **{key: {}}))
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(body)},
        "responses": {"200": {"description": "The answer.", "content": {**whole, **events}}, **_refusals()},
    }


def _refusals() -> dict[str, Any]:
    content = _json(_object(["error"], error={"type": "object"}))
    reasons = {
        "400": "The request is at fault; the message says where.",
        "401": "The key is missing or wrong.",
        "403": "Not from this origin.",
        "404": "No such model or route.",
        "405": "No such method here.",
        "413": "The body is too large.",
        "429": "The queue is full.",
        "500": "An error of the server's own.",
        "503": "The server is shutting down.",
    }
    return {code: {"description": text, "content": content} for code, text in reasons.items()}


def _talk(*roles: str) -> dict[str, Any]:
    message = _object(["role", "content"], role={"type": "string", "enum": list(roles)}, content=TEXTS)
    return {"type": "array", "minItems": 1, "items": message}


def _chat(model: dict[str, Any]) -> dict[str, Any]:
    return _closed(
        ["messages"],
        model=model,
        messages=_talk("system", "user", "assistant"),
        max_completion_tokens=LIMIT,
        stop={"anyOf": [STOP, STOPS]},
        presence_penalty={"type": "number", "minimum": -2, "maximum": 2},
        frequency_penalty={"type": "number", "minimum": -2, "maximum": 2},
        n={"type": "integer", "enum": [1]},
        logprobs={"type": "boolean"},
        stream_rounds={"type": "boolean"},
        **NUMBERS,
    )


def _completion(model: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    logprobs = {"type": "integer", "minimum": 0, "maximum": 5}
    return _closed(
        ["prompt"],
        model=model,
        prompt=_prompt(vocab_size),
        max_tokens=LIMIT,
        stop=STOPS,
        logprobs=logprobs,
        stream_rounds={"type": "boolean"},
        **NUMBERS,
    )


def _prompt(vocab_size: int) -> dict[str, Any]:
    """A text, or token ids; each may stand alone in a list."""
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": vocab_size - 1}}
    return {
        "anyOf": [text, ids, *({"type": "array", "minItems": 1, "maxItems": 1, "items": one} for one in (text, ids))]
    }


def _responses(model: dict[str, Any]) -> dict[str, Any]:
    return _closed(["input"], model=model, input=TEXT, instructions=TEXT, max_output_tokens=LIMIT, **NUMBERS)


def _messages(model: dict[str, Any]) -> dict[str, Any]:
    return _closed(
        ["messages", "max_tokens"],
        model=model,
        messages=_talk("user"),
        system=TEXTS,
        max_tokens=LIMIT,
        stop_sequences=STOPS,
        **NUMBERS,
    )


def _counted(model: dict[str, Any]) -> dict[str, Any]:
    return _closed(["messages"], model=model, messages=_talk("user"), system=TEXTS)
