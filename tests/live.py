"""A server on a real socket, in this process, over scripted or random checkpoints; and clients of it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import automaton
import httpx

from mlx_dspark import Pair
from mlx_dspark.engine.engine import Engine
from mlx_dspark.server.run import Listener, take_socket, url_of
from mlx_dspark.server.service import Service
from mlx_dspark.server.settings import ServeOptions

CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis, \"FR\"\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)  # fmt: skip
SCRIPTS = [
    "Fine.",  # 0
    "I think so.\n</think>The answer is 42, naïve 🙂 reader!",  # 1: reasoning, then text with half characters
    f"I need the weather\n</think>Let me look.\n\n{CALL}",  # 2: a call after text
    "It is 20 degrees in Paris (really).",  # 3: what follows a tool's result; unclosed reasoning if thinking is on
    f"Deep in thought about it {CALL.replace('Paris', 'Rome')}",  # 4: a call inside unclosed reasoning
    "</think>"
    + "".join(f"<tool_call>\n<function=f{i}>\n</function>\n</tool_call>\n" for i in range(2)),  # 5: two calls
    "alpha beta STOP gamma delta",  # 6
    "</think>" + " ".join(f"word{i}" for i in range(400)),  # 7: long
]


class Slow:
    """A target that takes its time, to be caught in the act."""

    def __init__(self, inner: Any, verify: float = 0.0, prefill: float = 0.0):
        self.inner, self.seconds = inner, (verify, prefill)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def verify(self, *args: Any) -> Any:
        time.sleep(self.seconds[0])
        return self.inner.verify(*args)

    def prefill(self, *args: Any) -> Any:
        time.sleep(self.seconds[1])
        return self.inner.prefill(*args)


@dataclass
class Live:
    """A running server."""

    url: str
    engine: Engine
    service: Service
    listener: Listener
    thread: threading.Thread
    http: httpx.Client

    def post(self, path: str, body: Any = None, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def idle(self, seconds: float = 30) -> None:
        """Wait until nothing runs or waits."""
        until = time.monotonic() + seconds
        while self.engine.counts != (0, 0):
            assert time.monotonic() < until, self.engine.counts
            time.sleep(0.01)

    def close(self) -> None:
        self.http.close()
        self.listener.stop()
        self.engine.cancel_all()
        self.thread.join(30)
        self.engine.close(30)
        assert not self.thread.is_alive()


def start(pair: Pair, **options: Any) -> Live:
    settings = ServeOptions(port=0, drain=0.2, **{"prefix_cache_gb": 0.05, **options})
    taken = take_socket(settings)
    url = url_of(taken)
    engine = Engine(lambda: pair, max_queue=settings.max_queue, cache_bytes=int(settings.prefix_cache_gb * 1e9))
    engine.start()
    service = Service(engine, settings)
    listener = Listener(service, settings)
    taken.listen(256)

    def run() -> None:
        asyncio.run(listener.serve(sockets=[taken]))
        taken.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not listener.started:
        time.sleep(0.01)
    key = {b"authorization": b"Bearer " + options["api_key"].encode()} if options.get("api_key") else {}
    http = httpx.Client(base_url=url, headers=key, timeout=120)
    return Live(url, engine, service, listener, thread, http)


@dataclass(frozen=True)
class Scripted:
    pair: Pair
    follows: dict[int, int]

    def with_drafter(self, right: int = 8, target: Any = None) -> Pair:
        drafter = automaton.Follower(self.follows, right)
        return replace(self.pair, drafter=drafter, target=target or self.pair.target)


def raw(url: str) -> socket.socket:
    """A bare connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def chunks(text: str) -> list[dict[str, Any]]:
    """The events of an OpenAI stream, which must end with [DONE]."""
    events = [e.removeprefix("data: ") for e in text.split("\n\n") if e]
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    return [json.loads(e) for e in events[:-1]]


TOOL = {"name": "get_weather", "description": "w"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
OPENAI = [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}]
FLAT = [{"type": "function", **TOOL, "parameters": SCHEMA}]
ANTHROPIC = [{**TOOL, "input_schema": SCHEMA}]


def asked(path: str, script: int, limit: int | None, tools: bool) -> dict[str, Any]:
    """The same request in each dialect."""
    chat = [{"role": "user", "content": f"{{S{script}}}"}]
    if path == "/v1/completions":
        return {"prompt": f"<|S{script}|>", "max_tokens": limit}
    if path == "/v1/responses":
        return {"input": chat, "max_output_tokens": limit, "tools": FLAT if tools else None}
    if path == "/v1/messages":
        return {
            "messages": chat,
            "max_tokens": limit or 4000,
            "thinking": {"type": "enabled"},
            "tools": ANTHROPIC if tools else None,
        }
    return {"messages": chat, "max_tokens": limit, "tools": OPENAI if tools else None}
