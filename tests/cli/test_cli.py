"""The command as a user meets it, and the Python API beside it."""

from __future__ import annotations

import functools
import json
import operator
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_dspark
from mlx_dspark import Pair, load
from mlx_dspark.cli.docs import updated
from mlx_dspark.cli.main import main
from mlx_dspark.errors import OptionError, PromptError

ROOT = Path(__file__).parents[2]
PROMPT = "There are 3 tickets in each jar. How many tickets are there in 6 jars?"
FIELDS = {
    "text",
    "reasoning",
    "tokens",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "rounds",
    "accept_length",
    "accepted_per_position",
    "drafted",
    "prefill_seconds",
    "decode_seconds",
    "tokens_per_second",
    "peak_memory_bytes",
    "mode",
    "model",
    "drafter",
    "device",
    "exact",
}


def run(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mlx_dspark", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300)


def test_the_embedded_pair_answers_from_a_pipe() -> None:
    done = run("generate", "--max-draft", "7", "--thinking", stdin=PROMPT)
    assert done.returncode == 0
    assert done.stdout.startswith("[thinking] ")
    assert "Answer:" in done.stdout
    assert "<think>" not in done.stdout
    assert "</think>" not in done.stdout
    assert "accept length" in done.stderr
    assert "exact" in done.stderr


def test_json_has_every_field_and_the_modes_agree(tmp_path: Path) -> None:
    found = {}
    for mode in ("auto", "lookup", "baseline"):
        done = run("generate", "--mode", mode, "--json", "--max-tokens", "24", "--prompt", PROMPT, "--seed", "3",
                   "--temperature", "1", "--trace", str(tmp_path / mode))  # fmt: skip
        found[mode] = json.loads(done.stdout)
        assert set(found[mode]) == FIELDS
        rounds = [json.loads(line) for line in (tmp_path / mode).read_text().splitlines()]
        assert functools.reduce(operator.iadd, (r["tokens"] for r in rounds), []) == found[mode]["tokens"]
    assert len({tuple(f["tokens"]) for f in found.values()}) == 1
    assert len({(f["text"], f["reasoning"]) for f in found.values()}) == 1
    assert found["auto"]["exact"] is True
    assert found["baseline"]["drafted"] == 0
    assert found["auto"]["peak_memory_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", "x", "--max-tokens", "0"], "--max-tokens is 0"),
        (["--prompt", "x", "--temperature", "-1"], "--temperature is -1"),
        (["--prompt", "x", "--mode", "warp"], "--mode is 'warp'"),
        (["--prompt", "x", "--drafter-bits", "3"], "--drafter-bits is 3"),
        (["--prompt", "x", "--model", "./nowhere"], "no folder here"),
        (["--prompt", "x", "--trace", "/nowhere/file"], "--trace /nowhere/file"),
        (["--prompt", "x", "--stop", ""], "--stop is an empty text"),
        (
            ["--prompt", "x", "--max-draft", "many"],
            "--max-draft is 'many', but it must be a number between 0 and 64, or auto",
        ),
        (["--prompt", "x", "--max-draft", "65"], "--max-draft is 65, but it must be between 0 and 64, or auto"),
        (["--prompt", "x", "--max-draft", "2.5"], "or auto"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["generate", *arguments])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert said in shown.err
    assert len(shown.err.strip().splitlines()) == 1


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom mlx_dspark.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('mlx', 'transformers', 'mlx_lm', 'torch', 'numpy', 'huggingface_hub') if m in sys.modules])"
    )
    for arguments in (["--help"], ["--version"], ["generate", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.strip().splitlines()[-1] == "[]"
    assert run("--version").stdout.strip() == f"mlx-dspark {mlx_dspark.__version__}"


def test_the_readme_lists_every_flag() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert updated(text) == text


def test_public_names() -> None:
    assert set(mlx_dspark.__all__) == {"DsparkError", "Pair", "Part", "Result", "Round", "__version__", "load"}
    for name in mlx_dspark.__all__:
        assert getattr(mlx_dspark, name)


def test_stop_strings_and_system_messages(demo: Pair) -> None:
    whole = demo.generate(PROMPT, max_tokens=60, thinking=True)
    assert whole.finish_reason == "stop"
    for cap in (0, 3, 7):
        cut = demo.generate(PROMPT, max_tokens=60, thinking=True, stop=["Answ", "zzz"], max_draft=cap)
        assert cut.finish_reason == "stop"
        assert cut.text == whole.text[: whole.text.index("Answ")]
        assert cut.tokens == whole.tokens[: cut.completion_tokens]
        assert cut.completion_tokens < whole.completion_tokens
    other = demo.generate(PROMPT, max_tokens=4, system="You are brief.")
    assert other.prompt_tokens > whole.prompt_tokens


def test_streamed_text_is_the_generated_text(demo: Pair) -> None:
    parts = list(demo.stream(PROMPT, max_tokens=40, max_draft=7))
    result = demo.generate(PROMPT, max_tokens=40, max_draft=7)
    assert "".join(p.text for p in parts) == result.text
    assert "".join(p.reasoning for p in parts) == result.reasoning
    assert sum(len(p.round.tokens) for p in parts if p.round) == result.completion_tokens


def test_the_api_refuses_what_it_cannot_do(demo: Pair) -> None:
    with pytest.raises(OptionError, match="max_token is no setting"):
        demo.generate("x", max_token=3)
    with pytest.raises(PromptError, match="context is 4096"):
        demo.generate("word " * 5000, max_tokens=3)
    with pytest.raises(OptionError, match="--dtype is 'bf'"):
        load("demo", dtype="bf")


def test_memory_stays_level_over_many_requests(demo: Pair) -> None:
    import gc

    import mlx.core as mx

    levels = []
    for i in range(24):
        stream = demo.stream("Hi", max_tokens=6, max_draft=i % 8)
        for count, _ in enumerate(stream):
            if i % 3 == 0 and count == 1:
                break
        stream.close()
        gc.collect()
        levels.append(mx.get_active_memory())
    assert max(levels[12:]) <= 1.05 * max(levels[:12])
