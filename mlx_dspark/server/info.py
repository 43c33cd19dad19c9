"""What the server says of itself: models, health, Prometheus metrics."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from mlx_dspark.engine.stats import FIRST_TOKEN_BUCKETS
from mlx_dspark.server.service import Service
from mlx_dspark.version import __version__


def model_list(service: Service, anthropic: bool) -> dict[str, Any]:
    data = [_model(service, name, anthropic) for name in service.names]
    if anthropic:
        return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return {"object": "list", "data": data}


def one_model(service: Service, name: str, anthropic: bool) -> dict[str, Any]:
    service.check_model(name)
    return _model(service, name, anthropic)


def _model(service: Service, name: str, anthropic: bool) -> dict[str, Any]:
    if anthropic:
        created = datetime.datetime.fromtimestamp(service.created, datetime.timezone.utc)
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": created.isoformat().replace("+00:00", "Z"),
            "lifecycle": "active",
            "max_input_tokens": service.window - 1,
            "max_tokens": service.window - 1,
        }
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "mlx-dspark",
        "context_window": service.window,
        "max_model_len": service.window,
    }


def health(service: Service) -> dict[str, Any]:
    """Open to all: nothing here tells of requests' contents."""
    active, waiting = service.engine.counts
    counters, cache, pair = service.engine.stats.copy(), service.engine.cache, service.pair
    return {
        "status": "ok" if service.engine.accepting else "closing",
        "version": __version__,
        "model": service.model,
        "drafter": pair.names["drafter"],
        "mode": pair.drafter.name,
        "device": pair.names["device"],
        "exact": pair.widths.exact,
        "context_window": service.window,
        "active": active,
        "waiting": waiting,
        "accept_length": round(counters.accept_length, 4),
        "tokens_per_second": round(counters.tokens_per_second, 3),
        "prefix_cache_bytes": cache.nbytes,
        "prefix_cache_limit": cache.limit,
    }


def metrics(service: Service) -> bytes:
    """Prometheus text."""
    registry = CollectorRegistry()
    registry.register(_Figures(service))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[Metric]:
        engine = self._service.engine
        counters, (active, waiting) = engine.stats.copy(), engine.counts
        finished = CounterMetricFamily("dspark_requests", "Requests by how they ended.", labels=["finish"])
        for reason, count in sorted(counters.finished.items()):
            finished.add_metric([reason], count)
        yield finished
        for name, text, value in (
            ("prompt_tokens", "Prompt tokens, cached ones included.", counters.prompt_tokens),
            ("cached_prompt_tokens", "Prompt tokens that came from the prefix cache.", counters.cached_tokens),
            ("completion_tokens", "Tokens generated.", counters.completion_tokens),
            ("rounds", "Rounds decoded, first ones of a request left out.", counters.rounds),
            ("decoded_tokens", "Tokens of those rounds.", counters.decoded_tokens),
            ("drafted_tokens", "Drafts proposed.", counters.drafted),
            ("accepted_tokens", "Drafts that stood.", counters.accepted),
            ("prefill_seconds", "Time spent on prompts.", counters.prefill_seconds),
            ("decode_seconds", "Time spent on rounds.", counters.decode_seconds),
        ):
            yield CounterMetricFamily(f"dspark_{name}", text, value=value)
        for name, text, size in (
            ("active_requests", "Requests being answered.", active),
            ("waiting_requests", "Requests in the queue.", waiting),
            ("prefix_cache_bytes", "Bytes the prefix cache holds.", engine.cache.nbytes),
            ("accept_length", "Tokens a round since the start, bonus included.", counters.accept_length),
        ):
            yield GaugeMetricFamily(f"dspark_{name}", text, value=size)
        yield self._first_token(counters.first_token, counters.first_token_seconds)

    def _first_token(self, counts: list[int], total: float) -> Metric:
        buckets, below = [], 0
        for border, count in zip((*map(str, FIRST_TOKEN_BUCKETS), "+Inf"), counts, strict=True):
            below += count
            buckets.append((border, below))
        return HistogramMetricFamily(
            "dspark_first_token_seconds", "From submission to the first token.", buckets=buckets, sum_value=total
        )
