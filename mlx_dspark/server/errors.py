"""What a request can be refused with: one exception, written in the body each dialect's clients understand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(Exception):
    """`param` names the field at fault, `code` is OpenAI's short word for the reason."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})


def openai_error(error: ApiError) -> dict[str, Any]:
    kind = OPENAI_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    kind = ANTHROPIC_TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def error_body(path: str, anthropic_client: bool, error: ApiError) -> dict[str, Any]:
    """The body for a route: Anthropic's under /v1/messages and for its clients elsewhere, OpenAI's on all others."""
    anthropic = path.startswith("/v1/messages") or anthropic_client
    return anthropic_error(error) if anthropic else openai_error(error)
