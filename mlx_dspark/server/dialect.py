"""What every dialect gives: a request's body -> Reply, and a Reply's deltas -> bytes; and what they share."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

from mlx_dspark.server.deltas import Block, Delta, Ended, Tokens
from mlx_dspark.server.service import Plan, Service

ORIGIN = "mlx_dspark"  # the key of this server's own block in replies


class Reply(Protocol):
    """How one request's answer is written."""

    plan: Plan
    stream: bool

    def frames(self, delta: Delta) -> list[bytes]:
        """Server-sent events for one delta."""

    def body(self, blocks: Sequence[Block], ended: Ended) -> dict[str, Any]:
        """The whole answer as JSON."""


def new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def streamed(delta: Tokens) -> dict[str, Any]:
    """One round in this server's own block of a chunk, for requests with stream_rounds."""
    return {
        "tokens": delta.tokens,
        "proposed": delta.proposed,
        "accepted": delta.accepted,
        "committed": delta.committed,
    }


def measured(service: Service, ended: Ended) -> dict[str, Any]:
    """This server's own block: what drafting did for the answer."""
    result = ended.finished.result
    return {
        "mode": result.mode if result.drafted else "baseline",
        "exact": result.exact,
        "rounds": result.rounds,
        "drafted": result.drafted,
        "accept_length": round(result.accept_length, 4),
        "tokens_per_second": round(result.tokens_per_second, 3),
        "first_token_seconds": round(ended.finished.first_token_seconds, 4),
        "prefill_seconds": round(result.prefill_seconds, 4),
        "decode_seconds": round(result.decode_seconds, 4),
        "cached_tokens": ended.finished.cached_tokens,
    }
