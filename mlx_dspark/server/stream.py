"""One answer over HTTP: as JSON or as server-sent events, ended at once when the client goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlx_dspark.server import wire
from mlx_dspark.server.deltas import Broken, Collector, Delta, Ended
from mlx_dspark.server.dialect import Reply
from mlx_dspark.server.service import Flow, failed

log = logging.getLogger(__name__)
T = TypeVar("T")


class Gone(Exception):
    """The client closed the connection."""


class Json(Response):
    """JSON with this server's encoder."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return wire.encode(content)


class Events(Response):
    """Server-sent events of one flow."""

    media_type = "text/event-stream"

    def __init__(self, flow: Flow, reply: Reply):
        super().__init__(b"", headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._flow, self._reply = flow, reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await unless_gone(receive, self._pump(send))
        except (Gone, OSError):
            pass
        finally:
            self._flow.cancel()

    async def _pump(self, send: Send) -> None:
        async for deltas in _safe(self._flow):
            body = b"".join(frame for delta in deltas for frame in self._reply.frames(delta))
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer(request: Request, flow: Flow, reply: Reply) -> Response:
    """The response of a submitted request. ApiError if it fails before its first byte."""
    if reply.stream:
        return Events(flow, reply)
    try:
        return await unless_gone(request.receive, _whole(flow, reply))
    except Gone:
        return Response(status_code=499)
    finally:
        flow.cancel()


async def unless_gone(receive: Callable[[], Awaitable[object]], work: Awaitable[T]) -> T:
    """The work's result. Raises Gone as soon as the client disconnects, with the work cancelled."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Callable[[], Awaitable[object]]) -> None:
    while True:
        message = await receive()
        if isinstance(message, dict) and message.get("type") == "http.disconnect":
            return


async def _whole(flow: Flow, reply: Reply) -> Response:
    collected = Collector()
    async for deltas in _safe(flow):
        for delta in deltas:
            if isinstance(delta, Broken):
                raise failed(delta)
            if isinstance(delta, Ended):
                return Json(reply.body(collected.blocks, delta))
            collected.add(delta)
    raise failed(Broken("the answer ended without a result"))


async def _safe(flow: Flow) -> AsyncIterator[list[Delta]]:
    """The flow's deltas; an error of ours on the way becomes its last one."""
    try:
        async for deltas in flow.batches():
            yield deltas
    except Exception:
        log.exception("a request failed while it was answered")
        yield [Broken("an internal error ended this request")]
