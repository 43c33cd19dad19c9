"""The page at `/`: static files of web/, sent under a policy that lets them load and call this server and nothing else.

The policy also forbids inline scripts and styles and every way of turning a string into markup (trusted types), so
that text of a model or of a user cannot become anything but text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

WEB = Path(__file__).parent / "web"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def page_routes(wrap: Callable[..., Callable[..., object]]) -> list[Route]:
    """A route a file; `wrap` is what the application puts around every endpoint."""
    files = sorted(path for path in WEB.iterdir() if path.suffix in TYPES)
    return [
        Route("/" if path.name == "index.html" else f"/{path.name}", wrap(partial(_file, path)), methods=["GET"])
        for path in files
    ]


async def _file(path: Path, request: Request) -> Response:
    return FileResponse(path, media_type=TYPES[path.suffix], headers=HEADERS)
