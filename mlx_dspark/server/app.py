"""The route table, body limits and error mapping. Everything a route does is elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mlx_dspark.errors import DsparkError
from mlx_dspark.server import chat_completions, completions, messages, responses, wire
from mlx_dspark.server.dialect import Reply
from mlx_dspark.server.errors import ApiError, error_body
from mlx_dspark.server.gate import Gate
from mlx_dspark.server.info import health, metrics, model_list, one_model
from mlx_dspark.server.openapi import openapi
from mlx_dspark.server.page import page_routes
from mlx_dspark.server.service import Service
from mlx_dspark.server.stream import Json, answer

log = logging.getLogger(__name__)
Read = Callable[[Service, Mapping[str, Any]], Reply]
Endpoint = Callable[[Request], Awaitable[Response]]


def build(service: Service) -> Starlette:
    """The ASGI application over a started engine."""
    described = openapi(service)

    async def models(request: Request) -> Response:
        return Json(model_list(service, _is_anthropic(request)))

    async def model(request: Request) -> Response:
        return Json(one_model(service, request.path_params["name"], _is_anthropic(request)))

    async def alive(request: Request) -> Response:
        return Json(health(service))

    async def numbers(request: Request) -> Response:
        return Response(metrics(service), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def description(request: Request) -> Response:
        return Json(described)

    async def count(request: Request) -> Response:
        body = wire.decode(await _body(request, service))
        return Json(await asyncio.to_thread(messages.count, service, body))

    routes = [
        *page_routes(_safe),
        Route("/health", _safe(alive), methods=["GET"]),
        Route("/metrics", _safe(numbers), methods=["GET"]),
        Route("/openapi.json", _safe(description), methods=["GET"]),
        *(Route(path, _safe(models), methods=["GET"]) for path in ("/v1/models", "/v1/models/")),
        Route("/v1/models/{name:path}", _safe(model), methods=["GET"]),
        Route("/v1/chat/completions", _generate(service, chat_completions.read), methods=["POST"]),
        Route("/v1/completions", _generate(service, completions.read), methods=["POST"]),
        Route("/v1/responses", _generate(service, responses.read), methods=["POST"]),
        Route("/v1/messages", _generate(service, messages.read), methods=["POST"]),
        Route("/v1/messages/count_tokens", _safe(count), methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Gate, options=service.options)],
        exception_handlers={HTTPException: _no_route},
    )


def _generate(service: Service, read: Read) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        body = wire.decode(await _body(request, service))
        reply = await asyncio.to_thread(read, service, body)
        return await answer(request, service.open(reply.plan), reply)

    return _safe(endpoint)


def _safe(endpoint: Endpoint) -> Endpoint:
    """Every error as the dialect's body."""

    async def call(request: Request) -> Response:
        try:
            response = await endpoint(request)
        except ApiError as error:
            response = _refused(request, error)
        except DsparkError as error:
            response = _refused(request, ApiError(400, str(error)))
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            response = _refused(request, ApiError(500, "an internal error ended this request", code="internal_error"))
        return response

    return call


def _refused(request: Request, error: ApiError) -> Response:
    return Json(error_body(request.url.path, _is_anthropic(request), error), error.status, headers=error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:200]}"
    reason = {404: f"{what} is no route here", 405: f"{what} is not allowed"}.get(error.status_code, error.detail)
    allowed = dict(error.headers or {})
    if error.status_code == 405 and "Allow" in allowed:
        reason += f"; allowed: {allowed['Allow']}"
    return _refused(request, ApiError(error.status_code, reason, headers=allowed))


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


async def _body(request: Request, service: Service) -> bytes:
    """The request's bytes. ApiError 413 beyond the limit, as soon as that is known."""
    limit = int(service.options.max_body_mb * 1_000_000)
    announced = request.headers.get("content-length", "")
    too_large = ApiError(
        413,
        f"the body is larger than {limit} bytes, which --max-body-mb allows; send less",
        code="request_too_large",
        headers={"connection": "close"},
    )
    if announced.isdigit() and int(announced[:20]) > limit:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)
