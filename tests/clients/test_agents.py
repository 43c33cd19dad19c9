"""Claude Code and Codex from npm, offline, against a scripted checkpoint: a tool call each, then the answer; exit 0.

Needs the two on the PATH, or their folder in MLX_DSPARK_AGENTS; left out where they are not.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import automaton
import pytest
from live import Live, start

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
def agents_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("agents") / "automaton"
    follows = automaton.write(folder, SCRIPTS, window=400_000)
    pair = load(str(folder), mode="baseline")
    live = start(replace(pair, drafter=automaton.Follower(follows)), prefix_cache_gb=1.0)
    yield live
    live.close()


def drive(live: Live, launch: Any, home: Path) -> subprocess.CompletedProcess[str]:
    where = {"HOME": str(home), "CODEX_HOME": str(home), "PATH": PLACES, "IS_SANDBOX": "1"}
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


@pytest.mark.slow
@pytest.mark.skipif(not found("claude"), reason="claude is not installed")
def test_claude_code_calls_a_tool_and_answers(agents_server: Live, tmp_path: Path) -> None:
    words = ["-p", "{S1} make the file", "--allowedTools", "Bash"]
    done = drive(
        agents_server, claude(agents_server.url, "none", served_model(agents_server.url, "none"), words), tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The file is there." in done.stdout
    assert (tmp_path / "made.txt").read_text() == "from-claude\n"
    assert agents_server.engine.stats.copy().cached_tokens > 0


@pytest.mark.slow
@pytest.mark.skipif(not found("codex"), reason="codex is not installed")
def test_codex_calls_a_tool_and_answers(agents_server: Live, tmp_path: Path) -> None:
    words = shlex.split("exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox '{S3} make the file'")
    done = drive(
        agents_server, codex(agents_server.url, "none", served_model(agents_server.url, "none"), words), tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All done here." in done.stdout
    assert (tmp_path / "made.txt").read_text() == "from-codex\n"
