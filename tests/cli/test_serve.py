"""`mlx-dspark serve` as a process: what it says, what it refuses, how it ends; and what the agents are given."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import automaton
import build
import httpx
import mlx.core as mx
import pytest

from mlx_dspark.cli import agents
from mlx_dspark.errors import DsparkError

LONG = {"messages": [{"role": "user", "content": "{S1}"}], "stream": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("serve") / "automaton"
    automaton.write(folder, ["Hello.", "</think>" + " ".join(f"word{i}" for i in range(400))])
    return str(folder)


class Process:
    """A served model; `url` is read from the banner."""

    def __init__(self, *words: str, **environment: str):
        command = [sys.executable, "-m", "mlx_dspark", "serve", "--port", "0", "--mode", "baseline", *words]
        self.inner = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        assert self.inner.stderr is not None
        self.banner = ""
        for line in self.inner.stderr:
            self.banner += line
            if "Ctrl-C" in line:
                break
        found = re.search(r"on (http://\S+)", self.banner)
        assert found, self.banner
        self.url = found[1]

    def end(self, sig: int = signal.SIGTERM) -> tuple[int, str]:
        self.inner.send_signal(sig)
        _, rest = self.inner.communicate(timeout=60)
        return self.inner.returncode, rest


@pytest.fixture
def serve(model: str) -> Iterator[Any]:
    started: list[Process] = []

    def make(*words: str, **environment: str) -> Process:
        started.append(Process("--model", model, *words, **environment))
        return started[-1]

    yield make
    for process in started:
        process.inner.kill()
        process.inner.wait()
        process.inner.stderr.close()


def refused(*words: str) -> str:
    command = [sys.executable, "-m", "mlx_dspark", "serve", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().split("\n")) == 1
    return done.stderr


def test_the_banner_says_what_is_served_and_its_lines_work(serve: Any, model: str) -> None:
    process = serve("--context-window", "2000")
    for word in ("automaton", "bit for bit", "full window", "window of 2000 tokens", "/v1/chat/completions", "Ctrl-C"):
        assert word in process.banner
    body = re.search(r"-d '(.*)'", process.banner)
    assert body
    reply = httpx.post(f"{process.url}/v1/chat/completions", content=body[1])
    assert reply.json()["choices"][0]["message"]["reasoning_content"] == "Hello."
    code, rest = process.end(signal.SIGINT)
    assert (code, rest.strip()) == (0, "")


def test_a_running_answer_is_finished_before_the_server_ends(serve: Any) -> None:
    process = serve("--drain", "30")
    with httpx.stream("POST", f"{process.url}/v1/chat/completions", json=LONG, timeout=60) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.inner.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{process.url}/v1/models", timeout=5)
        rest = list(lines)
    assert "[DONE]" in rest[-2:][0] + rest[-1]
    assert any("word399" in line for line in rest)
    assert process.inner.wait(30) == 0


def test_what_does_not_finish_in_time_is_told_so(serve: Any) -> None:
    process = serve("--drain", "0")
    answers: list[str] = []

    def ask() -> None:
        answers.append(httpx.post(f"{process.url}/v1/chat/completions", json=LONG, timeout=60).text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while json.loads(httpx.get(f"{process.url}/health").text)["waiting"] < 3:
        time.sleep(0.01)
    code, _ = process.end()
    for thread in threads:
        thread.join(30)
    assert code == 0
    assert len(answers) == 4
    assert sum("shutting down" in a for a in answers) >= 3
    assert all("[DONE]" in a for a in answers)


def test_a_signal_under_load_loses_none_of_the_accepted(serve: Any) -> None:
    process = serve("--drain", "60")
    texts: list[str] = []

    def ask() -> None:
        texts.append(httpx.post(f"{process.url}/v1/chat/completions", json=LONG, timeout=60).text)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while len(texts) + sum(httpx.get(f"{process.url}/health").json()[k] for k in ("active", "waiting")) < 6:
        time.sleep(0.005)
    code, _ = process.end()
    for thread in threads:
        thread.join(30)
    assert code == 0
    assert len(texts) == 6
    assert all(t.endswith("data: [DONE]\n\n") and '"finish_reason":"stop"' in t and "word399" in t for t in texts)


def test_the_key_can_come_from_the_environment(serve: Any) -> None:
    process = serve(MLX_DSPARK_API_KEY="secret")
    assert httpx.get(f"{process.url}/v1/models").status_code == 401
    assert httpx.get(f"{process.url}/v1/models", headers={"x-api-key": "secret"}).status_code == 200
    assert "secret" not in process.banner
    assert agents.served_model(process.url, "secret") == "automaton"
    with pytest.raises(DsparkError, match="another key"):
        agents.served_model(process.url, "wrong")


def test_what_cannot_be_served_is_refused_in_one_line(model: str, tmp_path: Path) -> None:
    assert "--api-key" in refused("--model", model, "--host", "0.0.0.0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}" in refused("--model", model, "--port", port)
    assert "--host" in refused("--model", model, "--host", "no.such.host.invalid")
    assert "--port" in refused("--port", "70000")
    assert "--keepalive" in refused("--keepalive", "0")
    assert "--api-key" in refused("--api-key", "")


def test_damaged_checkpoints_are_refused_by_file(tmp_path: Path) -> None:
    target = build.write_target(tmp_path / "target")
    weights = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "model.safetensors" in refused("--model", str(target), "--port", "0")
    (target / "model.safetensors").unlink()
    assert "safetensors" in refused("--model", str(target), "--port", "0")
    (target / "model.safetensors").write_bytes(weights)
    arrays = sorted(mx.load(str(target / "model.safetensors")).items())
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for shard, half in zip(shards, (arrays[0::2], arrays[1::2]), strict=True):
        mx.save_safetensors(str(target / shard), dict(half))
    (target / "model.safetensors").unlink()
    places = {name: shards[i % 2] for i, (name, _) in enumerate(arrays)}
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (target / shards[1]).unlink()
    assert shards[1] in refused("--model", str(target), "--port", "0")
    (target / "model.safetensors").write_bytes(weights)
    (target / "model.safetensors.index.json").unlink()
    (target / "tokenizer.json").unlink()
    assert "tokenizer.json" in refused("--model", str(target), "--port", "0")
    other = build.write_target(tmp_path / "other", pattern="M*")
    assert refused("--model", str(target), "--drafter", str(other), "--port", "0")


def test_print_env_shows_the_whole_launch(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    process = serve()
    for agent, words in (
        ("claude", ("ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL=automaton")),
        ("codex", ("wire_api", "MLX_DSPARK_API_KEY")),
    ):
        agents.run(agent, {"url": process.url, "api_key": None, "print_env": True}, ["-x", "a b"])
        shown = capsys.readouterr().out
        assert all(word in shown for word in words)
        assert shown.strip().endswith("-x 'a b'")
        assert process.url in shown
    with pytest.raises(DsparkError, match="mlx-dspark serve"):
        agents.run(agent, {"url": "http://127.0.0.1:9", "api_key": None, "print_env": True}, [])
    with pytest.raises(DsparkError, match="http"):
        agents.AgentOptions(url="ftp://x")
