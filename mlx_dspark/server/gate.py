"""The first thing a request meets: host and origin rules, CORS, the key, ids. Pure ASGI, so that errors have them too.

A page on the web must not be able to use a server on its reader's machine: without --allow-origin a request from
another origin is refused, and while the server listens on loopback alone, so is one for a host name that is not
this machine's (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlx_dspark.server.errors import ApiError, error_body
from mlx_dspark.server.settings import ServeOptions
from mlx_dspark.server.stream import Json

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/health",)
METHODS = "GET, POST, HEAD, OPTIONS"
HEADERS = (
    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, "
    "anthropic-dangerous-direct-browser-access, openai-organization, openai-project, x-stainless-arch, "
    "x-stainless-lang, x-stainless-os, x-stainless-package-version, x-stainless-retry-count, x-stainless-runtime, "
    "x-stainless-runtime-version, x-stainless-timeout, x-stainless-helper-method"
)


LET_IN, PATIENCE = 64_000_000, 1.0
"""Bytes and seconds of a body that nobody read which are let in before its answer goes out."""


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, options: ServeOptions):
        self.app, self._options = app, options
        self._key = options.api_key.encode() if options.api_key else None
        self._local = is_loopback(options.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        cors = self._cors(headers.get("origin"))
        body = _Body(receive)

        async def marked(message: Message) -> None:
            """Every reply has an id to quote, and CORS headers where its origin is allowed."""
            if message["type"] == "http.response.start":
                if "expect" not in headers:
                    await body.let_in()
                number = f"req_{secrets.token_hex(12)}"
                MutableHeaders(scope=message).update({**cors, "x-request-id": number, "request-id": number})
            await send(message)

        refusal = self._refusal(scope, headers, bool(cors))
        if refusal is not None:
            error = error_body(scope["path"], "anthropic-version" in headers, refusal)
            response = Json(error, refusal.status, headers={**refusal.headers, "connection": "close"})
            await response(scope, body, marked)
        elif scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Json({}, 200)(scope, body, marked)
        else:
            await self.app(scope, body, marked)

    def _cors(self, origin: str | None) -> dict[str, str]:
        allowed = self._options.allow_origin
        if origin is None or not ("*" in allowed or origin in allowed):
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": HEADERS,
            "access-control-expose-headers": "request-id, x-request-id, retry-after",
            "access-control-max-age": "600",
            "vary": "Origin",
        }

    def _refusal(self, scope: Scope, headers: Headers, allowed: bool) -> ApiError | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is not None and not allowed and urlsplit(origin).netloc != host:
            return ApiError(
                403, f"pages of {origin[:200]} may not use this server; start it with --allow-origin {origin[:200]}"
            )
        name = urlsplit(f"//{host}").hostname if host else None
        if self._local and self._key is None and name is not None and not is_loopback(name):
            return ApiError(403, f"the host {name[:200]} is not this machine's own name; use 127.0.0.1 or localhost")
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        if self._key is None or scope["path"] in OPEN_PATHS or (preflight and allowed):
            return None
        if any(hmac.compare_digest(key, self._key) for key in _keys(headers)):
            return None
        kind = 'Basic realm="mlx-dspark: the key is the password"' if scope["path"] == "/" else "Bearer"
        return ApiError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer KEY or x-api-key: KEY",
            code="invalid_api_key",
            headers={"www-authenticate": kind},
        )


class _Body:
    """A request's body on its way in, as ASGI's receive.

    A client that is still sending when a refusal closes the connection would lose the refusal.
    """

    def __init__(self, receive: Receive):
        self._receive, self._over = receive, False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._over = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def let_in(self) -> None:
        """Read what is left and forget it, within limits."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._rest(), PATIENCE)

    async def _rest(self) -> None:
        size = 0
        while not self._over and size < LET_IN:
            size += len((await self()).get("body", b""))


def _keys(headers: Mapping[str, str]) -> list[bytes]:
    """Every key a request shows: x-api-key, a bearer token, or the password a browser asked for."""
    found = [headers["x-api-key"].encode("latin-1")] if "x-api-key" in headers else []
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found.append(value.strip().encode("latin-1"))
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            found.append(base64.b64decode(value, validate=True).partition(b":")[2])
    return found
