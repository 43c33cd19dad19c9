"""Clients that vanish, lie and crowd: nobody else loses a token, nothing is left behind, the next answer is its solo run.

MLX_DSPARK_FAULTS sets how many of each fault (default 40).
"""

from __future__ import annotations

import gc
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import Live, Slow, raw

COUNT = int(os.environ.get("MLX_DSPARK_FAULTS", "40"))
POOL = 4 + (os.cpu_count() or 1)  # threads the event loop keeps for reading requests, made as they are needed
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def asked(path: str, script: int, **more: Any) -> dict[str, Any]:
    chat = [{"role": "user", "content": f"{{S{script}}}"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": f"<|S{script}|>"},
        "/v1/responses": {"input": chat},
        "/v1/messages": {"messages": chat, "max_tokens": 3000},
    }
    return {**bodies.get(path, {"messages": chat}), **more}


def request(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def text(reply: httpx.Response) -> Any:
    """What an answer says, without ids, clocks and measures."""
    found = reply.json()
    return found.get("choices") or found.get("content") or [item["content"] for item in found["output"]]


def left_behind() -> tuple[int, int]:
    """(threads, file descriptors) of this process."""
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


class Bystanders:
    """Two clients that go on asking, and note every answer that is not their solo run's."""

    def __init__(self, live: Live):
        self._live, self._over = live, threading.Event()
        self.answers = 0
        self.wrong: list[str] = []
        self._solo = {p: text(live.post(p, asked(p, 1))) for p in PATHS}
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(2)]

    def __enter__(self) -> Bystanders:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def _ask(self, index: int) -> None:
        with httpx.Client(base_url=self._live.url, timeout=120) as http:
            while not self._over.is_set():
                path = PATHS[(self.answers + index) % len(PATHS)]
                reply = http.post(path, json=asked(path, 1))
                if reply.status_code != 200 or text(reply) != self._solo[path]:
                    self.wrong.append(f"{path} {reply.status_code} {reply.text[:300]}")
                self.answers += 1


@pytest.fixture
def unharmed(serve: Callable[..., Live], scripted: Any) -> Iterator[Live]:
    """A server in use; afterwards it is idle, holds no more than before and answers as ever."""
    live = serve(scripted.with_drafter(right=2, target=Slow(scripted.pair.target, verify=0.002)), max_queue=1000)
    live.post(PATHS[0], asked(PATHS[0], 7))
    live.idle()
    before = left_behind()
    solo = {p: text(live.post(p, asked(p, 7))) for p in PATHS}
    with Bystanders(live) as others:
        yield live
    live.idle()
    assert (others.wrong, others.answers > 0) == ([], True)
    for path in PATHS:
        assert text(live.post(path, asked(path, 7))) == solo[path]
    until = time.monotonic() + 20
    while (after := left_behind())[1] > before[1] and time.monotonic() < until:
        time.sleep(0.1)
    assert after[0] <= before[0] + POOL
    assert after[1] <= before[1] + 4, "file descriptors are left open"


@pytest.mark.slow
def test_clients_that_disconnect_in_the_middle_of_a_stream(unharmed: Live) -> None:
    chance = random.Random(1)
    for index in range(COUNT):
        path = PATHS[index % len(PATHS)]
        body = json.dumps(asked(path, 7, stream=chance.random() < 0.8)).encode()
        with raw(unharmed.url) as wire:
            wire.sendall(request(path, body))
            if chance.random() < 0.5:  # a reset, not a goodbye
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.settimeout(chance.random() * 0.2 + 0.001)
            try:
                for _ in range(chance.randrange(4)):
                    wire.recv(chance.randrange(1, 2000))
            except TimeoutError:
                pass


def damaged(chance: random.Random, body: bytes) -> bytes:
    """A body cut, with bytes replaced, doubled, or with a value of another kind."""
    kind = chance.randrange(5)
    at = chance.randrange(len(body))
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    if kind == 2:
        return body[:at] + body[at:] + body[at:]
    fields = json.loads(body)
    values: list[Any] = [None, [], {}, -1, 10**40, "", "\u0000", 1.5, True, [[[]]], {"a": {"b": []}}, "\ud800"]
    name = chance.choice([*fields, "stream", "temperature", "stop", "tools", "max_tokens", "logit_bias", "metadata"])
    if kind == 3 and isinstance(fields.get("messages"), list):
        fields["messages"][0][chance.choice(["role", "content", "tool_calls"])] = chance.choice(values)
    else:
        fields[name] = chance.choice(values)
    return json.dumps(fields).encode()


@pytest.mark.slow
def test_bodies_that_are_damaged_are_refused_or_answered(unharmed: Live) -> None:
    chance = random.Random(2)
    refused = 0
    for index in range(COUNT):
        path = (*PATHS, "/v1/messages/count_tokens")[index % 5]
        body = json.dumps(asked(path, 0) if "count" not in path else asked("/v1/messages", 0)).encode()
        reply = unharmed.http.post(path, content=damaged(chance, body), timeout=60)
        assert reply.status_code in (200, 400, 404), reply.text
        if reply.status_code != 200:
            refused += 1
            assert reply.json()["error"]["message"]
    assert refused > COUNT / 3


@pytest.mark.slow
def test_clients_killed_during_prefill(serve: Callable[..., Live], scripted: Any) -> None:
    live = serve(scripted.with_drafter(target=Slow(scripted.pair.target, prefill=0.05)), prefix_cache_gb=0.0)
    solo = text(live.post(PATHS[0], asked(PATHS[0], 0)))
    body = request(PATHS[0], json.dumps({"messages": [{"role": "user", "content": "x" * 3000 + "{S0}"}]}).encode())
    program = (
        "import socket, sys, time; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
        "s.sendall(sys.stdin.buffer.read()); print('sent', flush=True); time.sleep(60)"
    )
    port = live.url.rpartition(":")[2]
    for _ in range(max(3, COUNT // 20)):
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", program, port], **pipes) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(body)
            client.stdin.close()
            client.stdout.readline()
            while live.engine.counts[0] == 0:
                time.sleep(0.005)
            client.kill()
        live.idle(1)
        assert text(live.post(PATHS[0], asked(PATHS[0], 0))) == solo
    finished = live.engine.stats.copy().finished
    assert finished["cancelled"] == max(3, COUNT // 20)


@pytest.mark.slow
def test_a_crowd_is_answered_or_told_to_wait(serve: Callable[..., Live], scripted: Any) -> None:
    live = serve(scripted.with_drafter(target=Slow(scripted.pair.target, verify=0.002)), max_queue=4)
    solo = {p: text(live.post(p, asked(p, 1))) for p in PATHS}

    def one(index: int) -> int:
        path = PATHS[index % len(PATHS)]
        with httpx.Client(base_url=live.url, timeout=120) as http:
            reply = http.post(path, json=asked(path, 1))
        assert reply.status_code in (200, 429)
        assert reply.status_code == 429 or text(reply) == solo[path]
        return reply.status_code

    with ThreadPoolExecutor(24) as pool:
        codes = list(pool.map(one, range(COUNT)))
    live.idle()
    assert (codes.count(200) > 4, codes.count(429) > 0) == (True, True)
    assert sum(live.engine.stats.copy().finished.values()) == codes.count(200) + len(PATHS)


@pytest.mark.slow
def test_a_soak_keeps_memory_threads_and_files(demo: Any, serve: Callable[..., Live]) -> None:
    """Mixed requests over a cache that is too small for them."""
    limit = 8_000_000
    live = serve(demo, prefix_cache_gb=limit / 1e9)
    chance = random.Random(3)
    levels = []
    for index in range(5 * COUNT):
        words = " ".join(str(chance.randrange(10)) for _ in range(chance.randrange(5, 200)))
        talk = [{"role": "user", "content": words}]
        if chance.random() < 0.3:
            talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Again?"}]
        body = {"messages": talk, "max_tokens": 4, "stream": True}
        if chance.random() < 0.3:
            with raw(live.url) as wire:
                wire.sendall(request(PATHS[0], json.dumps(body).encode()))
                wire.recv(100)
        else:
            assert live.post(PATHS[0], body).status_code == 200
        assert live.engine.cache.nbytes <= limit
        if index in (COUNT, 5 * COUNT - 1):
            live.idle()
            levels.append((*left_behind(), resident()))
    (threads, files, early), (threads_now, files_now, late) = levels
    assert threads_now <= threads + POOL
    assert files_now <= files + 2
    assert late < early * 1.1 + 20e6


def resident() -> float:
    """Bytes of this process in memory."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0.0
