"""Claude Code and Codex from npm, offline, against a scripted checkpoint: a tool call each, then the answer; exit 0.

Needs the two on the PATH, or their folder in MLX_DSPARK_AGENTS (install_agents.sh); left out where they are not.
Whatever is not on 127.0.0.1 goes through a proxy that notes the host and refuses.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import automaton
import pytest
from live import Live, Slow, start

from mlx_dspark import load
from mlx_dspark.cli.agents import claude, codex, served_model

PLACES = os.pathsep.join(filter(None, (os.environ.get("MLX_DSPARK_AGENTS"), os.environ.get("PATH"))))


def call(function: str, **values: str) -> str:
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"I should look.\n</think><tool_call>\n<function={function}>\n{body}</function>\n</tool_call>"


SCRIPTS = [
    "Nothing.",
    call("Bash", command="echo from-claude > made.txt", description="Make a file"),
    "Thinking of the result.\n</think>The file is there.",
    call("exec_command", cmd="echo from-codex > made.txt"),
    "Thinking of what came.\n</think>All done here.",
]


@pytest.fixture(scope="module")
def scripted_agents(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("agents") / "automaton"
    follows = automaton.write(folder, SCRIPTS, window=400_000)
    return replace(load(str(folder), mode="baseline"), drafter=automaton.Follower(follows))


@pytest.fixture(scope="module")
def agents_server(scripted_agents: Any) -> Any:
    live = start(scripted_agents, prefix_cache_gb=1.0)
    yield live
    live.close()


@pytest.fixture
def slow_server(scripted_agents: Any) -> Any:
    """Its prefill takes longer than the agents are told to wait for an event."""
    slow = replace(scripted_agents, target=Slow(scripted_agents.target, prefill=0.2))
    live = start(slow, prefix_cache_gb=1.0, keepalive=1.0)
    yield live
    live.close()


class Outside:
    """A proxy that lets nothing out; `asked` are the first lines of what wanted to leave."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.asked: list[str] = []
        threading.Thread(target=self._refuse, daemon=True).start()

    def _refuse(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                self.asked.append(client.recv(4096).split(b"\r\n")[0].decode("latin-1"))
                client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def outside() -> Iterator[Outside]:
    proxy = Outside()
    yield proxy
    proxy.close()


def drive(live: Live, launch: Any, home: Path, outside: Outside) -> subprocess.CompletedProcess[str]:
    where = {"HOME": str(home), "CODEX_HOME": str(home), "PATH": PLACES, "IS_SANDBOX": "1"}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        where |= {name: outside.url, name.lower(): outside.url}
    where |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    return subprocess.run(
        launch.command,
        env={**where, **launch.variables},
        cwd=home,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


def found(agent: str) -> bool:
    return shutil.which(agent, path=PLACES) is not None


def launch(agent: Any, live: Live, words: list[str]) -> Any:
    return agent(live.url, "none", served_model(live.url, "none"), words)


def figures(live: Live, agent: str) -> None:
    """What the session cost, for the record (pytest -rP shows it)."""
    counters = live.engine.stats.copy()
    shares = f"{counters.cached_tokens} of {counters.prompt_tokens} prompt tokens cached"
    print(f"{agent}: requests {counters.finished}, {shares}, {counters.completion_tokens} tokens")


@pytest.mark.slow
@pytest.mark.skipif(not found("claude"), reason="claude is not installed")
def test_claude_code_calls_a_tool_and_answers(agents_server: Live, tmp_path: Path, outside: Outside) -> None:
    words = ["-p", "{S1} make the file", "--allowedTools", "Bash"]
    done = drive(agents_server, launch(claude, agents_server, words), tmp_path, outside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The file is there." in done.stdout
    assert (tmp_path / "made.txt").read_text() == "from-claude\n"
    assert agents_server.engine.stats.copy().cached_tokens > 0
    figures(agents_server, "claude")
    assert outside.asked == [], "\n".join(outside.asked)


QUIET = "-c features.plugins=false -c analytics.enabled=false -c check_for_update_on_startup=false"
EXEC = "exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox '{S3} make the file'"


def check_codex(live: Live, home: Path, outside: Outside, *settings: str) -> None:
    done = drive(live, launch(codex, live, shlex.split(" ".join((QUIET, *settings, EXEC)))), home, outside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All done here." in done.stdout
    assert (home / "made.txt").read_text() == "from-codex\n"
    figures(live, "codex")
    assert outside.asked == [], "\n".join(outside.asked)


@pytest.mark.slow
@pytest.mark.skipif(not found("codex"), reason="codex is not installed")
def test_codex_calls_a_tool_and_answers(agents_server: Live, tmp_path: Path, outside: Outside) -> None:
    check_codex(agents_server, tmp_path, outside)


@pytest.mark.slow
@pytest.mark.skipif(not found("codex"), reason="codex is not installed")
def test_codex_waits_for_a_prefill_longer_than_its_idle_limit(
    slow_server: Live, tmp_path: Path, outside: Outside
) -> None:
    once = "-c model_providers.mlx-dspark.stream_max_retries=0 -c model_providers.mlx-dspark.request_max_retries=0"
    check_codex(slow_server, tmp_path, outside, once, "-c model_providers.mlx-dspark.stream_idle_timeout_ms=3000")
    assert slow_server.engine.stats.copy().prefill_seconds > 6
