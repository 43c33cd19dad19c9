"""The manual's examples run as they are written, and its lists of fields and metrics are the server's."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from live import Live, start

from mlx_dspark import Pair
from mlx_dspark.server import chat_completions, completions, messages, responses

MANUAL = (Path(__file__).parents[2] / "docs" / "server.md").read_text("utf-8")
HERE = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def served(demo: Pair) -> Any:
    live = start(demo)
    yield live
    live.close()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", MANUAL, re.DOTALL), ids=["openai", "anthropic"])
def test_python_examples_run(served: Live, block: str) -> None:
    out = io.StringIO()
    scope: dict[str, Any] = {}
    with contextlib.redirect_stdout(out):
        exec(block.replace(HERE, served.url), scope)
    scope["client"].close()
    assert out.getvalue().strip()


@pytest.mark.parametrize(
    "call", re.findall(r"curl (?:-N )?(\S+) -d '(.*?)'", MANUAL, re.DOTALL), ids=["chat", "messages"]
)
def test_curl_examples_run(served: Live, call: tuple[str, str]) -> None:
    reply = served.http.post(call[0].replace(HERE, served.url), content=call[1])
    assert reply.status_code == 200, reply.text


def test_every_field_with_an_effect_is_described() -> None:
    kinds = (
        chat_completions.ChatCompletion,
        completions.Completion,
        responses.ResponsesRequest,
        messages.MessagesRequest,
    )
    contents = {"model", "messages", "prompt", "input", "instructions", "system", "text", "reasoning", "output_config"}
    for kind in kinds:
        for name in set(kind.model_fields) - contents:
            assert re.search(rf"`{name}\b", MANUAL), f"docs/server.md lacks {name}"


def test_every_metric_is_listed(served: Live) -> None:
    named = set(re.findall(r"^# TYPE (\w+)", served.http.get("/metrics").text, re.MULTILINE))
    assert named == set(re.findall(r"`(dspark_\w+)", MANUAL))


def test_the_block_of_an_answer_is_described(served: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    block = served.post("/v1/chat/completions", body).json()["mlx_dspark"]
    table = MANUAL[MANUAL.index("## Answers") : MANUAL.index("## Prefix cache")]
    assert set(block) == set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))))
