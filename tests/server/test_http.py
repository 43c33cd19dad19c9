"""HTTP itself: routes, methods, keys, origins, bodies, connections, cancelling, queues, failures."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import time
from typing import Any

import httpx
import pytest
from live import Slow, chunks, raw

LONG = {"messages": [{"role": "user", "content": "{S7}"}], "stream": True}
SHORT = {"messages": [{"role": "user", "content": "{S0}"}]}
"""See conftest.SCRIPTS."""


def lines(reply: httpx.Response) -> list[str]:
    return [line for line in reply.text.split("\n") if line]


def test_every_route_but_health_needs_the_key(serve) -> None:
    live = serve(api_key="sésame")
    bare = httpx.Client(base_url=live.url)
    routes = [(m, r.path) for r in live.listener.config.app.routes for m in r.methods]
    assert len(routes) > 15
    for method, path in [*routes, ("GET", "/nothing"), ("OPTIONS", "/v1/models")]:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}, {"authorization": "Basic !"}):
            reply = bare.request(method, path.replace("{name:path}", "x"), headers=headers)
            assert reply.status_code == (200 if path == "/health" else 401), (method, path)
    assert "Bearer" in bare.get("/v1/models").headers["www-authenticate"]
    key = "sésame".encode()
    for headers in (
        {b"authorization": b"Bearer " + key},
        {b"x-api-key": key},
        {b"authorization": b"Basic OnPDqXNhbWU="},
    ):
        assert bare.get("/v1/models", headers=list(headers.items())).status_code == 200
    assert bare.post("/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
    bare.close()


def test_pages_of_other_origins_may_not_use_it(live, serve) -> None:
    evil = {"origin": "http://evil.example"}
    assert live.post("/v1/chat/completions", SHORT, headers=evil).status_code == 403
    assert live.http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    own = {"origin": live.url}
    assert live.post("/v1/chat/completions", SHORT, headers=own).status_code == 200
    open_one = serve(allow_origin=("http://good.example",), api_key="k")
    good = {"origin": "http://good.example"}
    asked = {**good, "access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    preflight = httpx.options(f"{open_one.url}/v1/messages", headers=asked)
    assert preflight.status_code == 200
    for name in ("authorization", "x-api-key", "anthropic-version", "content-type"):
        assert name in preflight.headers["access-control-allow-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for reply in (
        open_one.post("/v1/chat/completions", SHORT, headers=good),
        open_one.post("/v1/chat/completions", {}, headers=good),
        httpx.get(f"{open_one.url}/v1/models", headers=good),
        open_one.http.get("/nothing", headers=good),
    ):
        assert reply.headers["access-control-allow-origin"] == "http://good.example"
    denied = open_one.post("/v1/chat/completions", SHORT, headers=evil)
    assert (denied.status_code, denied.headers.get("access-control-allow-origin")) == (403, None)
    assert httpx.options(f"{open_one.url}/v1/messages", headers={**asked, **evil}).status_code in (401, 403)


def test_unknown_routes_and_methods_have_the_dialects_bodies(live) -> None:
    for method, path, status in (
        ("GET", "/v1/nothing", 404), ("POST", "/", 405), ("GET", "/v1/chat/completions", 405), ("PUT", "/v1/models", 405),
    ):  # fmt: skip
        reply = live.http.request(method, path)
        assert reply.status_code == status
        assert reply.json()["error"]["message"]
        assert status == 404 or reply.headers["allow"]
    assert live.http.get("/v1/messages").json()["type"] == "error"


def test_every_reply_has_an_id_to_quote(live) -> None:
    replies = [
        live.post("/v1/chat/completions", SHORT), live.post("/v1/chat/completions", LONG), live.post("/v1/messages", {}),
        live.http.get("/nothing"), live.http.put("/v1/models"), live.http.get("/health"),
        live.post("/v1/messages", {}, headers={"origin": "http://evil.example"}),
    ]  # fmt: skip
    ids = [r.headers["request-id"] for r in replies]
    assert len(set(ids)) == len(ids)
    assert ids == [r.headers["x-request-id"] for r in replies]


@pytest.mark.parametrize("name", ["gpt-4o", "../../etc", "org/other", ""])
def test_only_served_models_are_answered(serve, name: str) -> None:
    live = serve(alias=("mine",))
    for path, body in (
        ("/v1/chat/completions", SHORT), ("/v1/completions", {"prompt": "x"}), ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {**SHORT, "max_tokens": 5}), ("/v1/messages/count_tokens", SHORT),
    ):  # fmt: skip
        reply = live.post(path, {**body, "model": name})
        assert reply.status_code == 404
        assert "automaton" in reply.json()["error"]["message"]
        for good in ("mine", "automaton"):
            assert live.post(path, {**body, "model": good}).status_code == 200
    assert live.post("/v1/chat/completions", {**SHORT, "model": name}).json()["error"]["code"] == "model_not_found"
    for path in ("/v1/models", "/v1/models/"):
        assert [m["id"] for m in live.http.get(path).json()["data"]] == ["automaton", "mine"]
    assert live.http.get("/v1/models/mine").json()["id"] == "mine"
    assert live.http.get("/v1/models/org/other").status_code == 404
    listed = live.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert (listed["first_id"], listed["data"][0]["type"]) == ("automaton", "model")


@pytest.mark.parametrize("length", [15, 16, 17, 500])
def test_a_prompt_over_the_window_is_refused_as_a_context_limit(serve, length: int) -> None:
    live = serve(context_window=16)
    reply = live.post("/v1/completions", {"prompt": [65] * length})
    assert reply.status_code == (200 if length < 16 else 400)
    if length >= 16:
        error = reply.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "prompt is too long" in error["message"]
        assert "maximum context length" in error["message"]
    chat = live.post(
        "/v1/messages", {"max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "x" * 99}]}
    )
    assert (chat.status_code, chat.json()["error"]["type"]) == (400, "invalid_request_error")
    assert live.post("/v1/completions", {"prompt": [65]}).status_code == 200


def test_bodies_that_are_no_object(live) -> None:
    bodies = [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"a": NaN}',
        b'{"a": 1}}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
    ]
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ):
        for body in bodies:
            reply = live.http.post(path, content=body)
            assert reply.status_code == 400, (path, body[:20], reply.text)
            assert reply.json()["error"]["message"]
    assert live.post("/v1/chat/completions", SHORT).status_code == 200


def test_a_body_over_the_limit_is_refused_on_every_route(serve) -> None:
    live = serve(max_body_mb=0.01)
    for path in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
    ):
        assert live.http.post(path, content=b"x" * 10_001).status_code == 413
        assert live.http.post(path, content=iter([b"x" * 9000] * 3)).status_code == 413
    assert live.post("/v1/messages", "x" * 20_000).json()["error"]["type"] == "request_too_large"
    assert live.post("/v1/chat/completions", SHORT).status_code == 200


def test_wrong_lengths_and_broken_http_harm_nobody(live) -> None:
    for text in (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: x\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -5\r\n\r\n{}",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"nonsense\r\n\r\n",
    ):
        with raw(live.url) as wire:
            wire.sendall(text)
            wire.settimeout(10)
            assert b" 400 " in wire.recv(4096).split(b"\r\n")[0]
    with raw(live.url) as wire:  # more announced than sent
        wire.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99\r\n\r\n{}")
    assert live.post("/v1/chat/completions", SHORT).status_code == 200
    live.idle()


def test_one_connection_serves_a_stream_a_refusal_and_a_stream(live) -> None:
    address = live.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=30)
    for body, status in ((LONG, 200), ({}, 400), (LONG, 200)):
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        reply = connection.getresponse()
        text = reply.read().decode()
        assert reply.status == status
        assert status == 400 or text.endswith("data: [DONE]\n\n")
    connection.close()
    with raw(live.url) as wire:
        body = json.dumps({**SHORT, "stream": True}).encode()
        wire.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        text = b""
        while piece := wire.recv(65536):
            text += piece
    assert text.endswith(b"\r\n0\r\n\r\n")


def test_a_refused_body_does_not_become_the_next_request(live) -> None:
    inner = b"GET /nothing HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 20_000
    for path, headers, status in (
        ("/v1/nothing", {}, 404), ("/v1/models", {}, 405), ("/v1/chat/completions", {"origin": "http://evil.example"}, 403),
    ):  # fmt: skip
        connection = http.client.HTTPConnection(live.url.removeprefix("http://"), timeout=30)
        for _ in range(2):  # http.client opens a new connection where the server closed the old one
            connection.request("POST", path, inner, headers)
            reply = connection.getresponse()
            assert (reply.status, bool(json.loads(reply.read())["error"]["message"])) == (status, True)
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read())["status"] == "ok"
        connection.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
def test_silence_is_filled_with_events_clients_count(serve, scripted, path: str) -> None:
    live = serve(scripted.with_drafter(target=Slow(scripted.pair.target, prefill=1.2)), keepalive=0.2)
    bodies = {
        "/v1/messages": {**SHORT, "max_tokens": 9}, "/v1/responses": {"input": "{S0}"}, "/v1/completions": {"prompt": "ab<|S0|>"},
    }  # fmt: skip
    body = {**bodies.get(path, SHORT), "stream": True}
    marks, events = [time.monotonic()], []
    with live.http.stream("POST", path, json=body) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                marks.append(time.monotonic())
                events.append(json.loads(line.removeprefix("data: ")))
    assert max(b - a for a, b in itertools.pairwise(marks)) < 1.0
    kinds = {
        "/v1/messages": lambda e: e["type"] == "ping", "/v1/responses": lambda e: e["type"] == "response.in_progress",
        "/v1/completions": lambda e: e["choices"][0]["text"] == "",
    }  # fmt: skip
    assert sum(map(kinds.get(path, lambda e: e["choices"][0]["delta"] == {}), events)) >= 4


def test_tool_calls_that_are_held_back_do_not_silence_the_stream(serve, scripted) -> None:
    live = serve(scripted.with_drafter(target=Slow(scripted.pair.target, verify=0.12)), keepalive=0.3)
    tools = [{"type": "function", "function": {"name": "f0"}}]
    body = {"messages": [{"role": "user", "content": "{S5}"}], "tools": tools, "stream": True, "mode": "baseline"}
    marks = [time.monotonic()]
    with live.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        marks += [time.monotonic() for line in reply.iter_lines() if line.startswith("data: {")]
    assert max(b - a for a, b in itertools.pairwise(marks)) < 1.5


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("slow", [{"verify": 0.1}, {"prefill": 0.3}])
def test_a_client_that_leaves_frees_the_engine_within_a_round(
    serve, scripted, stream: bool, slow: dict[str, float]
) -> None:
    live = serve(scripted.with_drafter(target=Slow(scripted.pair.target, **slow)))
    content = "{S7}" if "verify" in slow else "x" * 3000 + "{S0}"
    body = {"messages": [{"role": "user", "content": content}], "stream": stream, "mode": "baseline"}
    expected = live.post("/v1/chat/completions", SHORT).json()["choices"]
    for _ in range(3):
        with raw(live.url) as wire:
            text = json.dumps(body).encode()
            wire.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%s"
                % (len(text), text)
            )
            while live.engine.counts[0] == 0:
                time.sleep(0.01)
            time.sleep(0.2)
        live.idle(2)
    assert live.post("/v1/chat/completions", SHORT).json()["choices"] == expected


def test_a_full_queue_answers_429_and_loses_nobody(serve, scripted) -> None:
    live = serve(scripted.with_drafter(target=Slow(scripted.pair.target, verify=0.05)), max_queue=1)
    opened = []
    for index in range(2):
        client = httpx.Client(base_url=live.url, timeout=60)
        request = client.build_request(
            "POST", "/v1/chat/completions", json={**LONG, "max_tokens": 20, "mode": "baseline"}
        )
        opened.append((client, client.send(request, stream=True)))
        while sum(live.engine.counts) <= index:
            time.sleep(0.01)
    for path, body in (("/v1/chat/completions", SHORT), ("/v1/messages", {**SHORT, "max_tokens": 4})):
        full = live.post(path, body)
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        assert full.json()["error"]["type"] == "rate_limit_error"
    texts = [reply.read().decode() for _, reply in opened]
    assert all(t.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in t for t in texts)
    for client, reply in opened:
        reply.close()
        client.close()
    assert live.post("/v1/chat/completions", SHORT).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
def test_a_crash_answers_its_request_and_no_other(serve, scripted, path: str) -> None:
    class Mine(Slow):
        fuse = 0

        def verify(self, *args: Any) -> Any:
            self.fuse -= 1
            if self.fuse == 0:
                raise RuntimeError("boom")
            return self.inner.verify(*args)

    target = Mine(scripted.pair.target)
    live = serve(scripted.with_drafter(target=target))
    bodies = {
        "/v1/messages": {**SHORT, "max_tokens": 9}, "/v1/responses": {"input": "{S7}"}, "/v1/completions": {"prompt": "<|S7|>"},
    }  # fmt: skip
    body = bodies.get(path, {"messages": LONG["messages"]})
    for stream, fuse in ((False, 1), (True, 2), (True, 1)):
        target.fuse = fuse
        reply = live.post(path, {**body, "stream": stream})
        if not stream:
            assert reply.status_code == 500
            assert "internal error" in reply.json()["error"]["message"]
        else:
            assert reply.status_code == 200
            assert reply.text.count("internal error") == 1
            assert "message_stop" not in reply.text
            assert "response.completed" not in reply.text
        assert "boom" not in reply.text
        assert live.post(path, body).status_code == 200
        live.idle()
    assert live.http.get("/health").json()["active"] == 0


def test_concurrent_answers_are_never_mixed(live) -> None:
    from concurrent.futures import ThreadPoolExecutor

    words = {1: "naïve", 2: "weather", 6: "gamma", 0: "Fine."}

    def one(index: int) -> bool:
        script = [1, 2, 6, 0][index % 4]
        body = {"messages": [{"role": "user", "content": f"{{S{script}}}"}], "stream": index % 3 == 0}
        text = live.post("/v1/chat/completions", body).text
        shown = (
            "".join(
                c["choices"][0]["delta"].get(k) or "" for c in chunks(text) for k in ("content", "reasoning_content")
            )
            if body["stream"]
            else text
        )
        return all((word in shown) == (s == script) for s, word in words.items())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(60)))
    live.idle()


def test_health_metrics_and_openapi_tell_the_truth(serve) -> None:
    live = serve()
    before = live.http.get("/health").json()
    assert (before["status"], before["active"], before["exact"], before["model"]) == ("ok", 0, True, "automaton")
    usage = live.post("/v1/chat/completions", SHORT).json()["usage"]
    figures = dict(
        line.rsplit(" ", 1) for line in live.http.get("/metrics").text.split("\n") if line and not line.startswith("#")
    )
    assert float(figures["dspark_completion_tokens_total"]) == usage["completion_tokens"]
    assert float(figures['dspark_requests_total{finish="stop"}']) == 1
    assert float(figures["dspark_prompt_tokens_total"]) == usage["prompt_tokens"]
    assert float(figures["dspark_first_token_seconds_count"]) == 1
    described = live.http.get("/openapi.json").json()
    assert {"/v1/chat/completions", "/v1/messages", "/v1/responses"} <= set(described["paths"])


def test_a_stalled_client_does_not_stop_the_others(live) -> None:
    stalled = socket.create_connection(live.url.removeprefix("http://").split(":"))
    stalled.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 500\r\n\r\n{")
    assert live.post("/v1/chat/completions", SHORT).status_code == 200
    stalled.close()
