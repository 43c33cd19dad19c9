"""`mlx-dspark generate`: one answer, streamed, thinking dim, then a closing line of what was measured; or JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mlx_dspark.cli.flags import collect
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.engine.settings import GenerateOptions, LoadOptions
from mlx_dspark.errors import OptionError, PromptError
from mlx_dspark.options import check_options, option

if TYPE_CHECKING:
    from mlx_dspark.engine.pair import Pair, Part
    from mlx_dspark.engine.result import Result

DIM, RESET = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True)
class TerminalOptions:
    """What goes in and what is shown."""

    prompt: str | None = option(None, "The prompt; - or nothing reads standard input.")
    json: bool = option(False, "Print one JSON object instead of streaming text.", flag="--json")
    quiet: bool = option(False, "Print the answer alone: no thinking, no progress, no closing line.", flag="--quiet")
    trace: str | None = option(None, "Write one JSON line a round to this file.", metavar="FILE")

    def __post_init__(self) -> None:
        check_options(self)


def run(values: dict[str, Any]) -> None:
    """The whole command from parsed flag values."""
    shown: TerminalOptions = collect(TerminalOptions, values)
    loading: LoadOptions = collect(LoadOptions, values)
    answering: GenerateOptions = collect(GenerateOptions, values)
    loading = replace(loading, calibrate=loading.calibrate and answering.max_draft is None)
    sampling: SamplingParams = collect(SamplingParams, values)
    prompt = _prompt(shown)
    trace = _open_trace(shown.trace)
    from mlx_dspark.cli.progress import Progress
    from mlx_dspark.engine.load import load

    with Progress(sys.stderr, enabled=not (shown.quiet or shown.json)) as progress:
        settings = {k: v for k, v in asdict(loading).items() if k not in ("model", "drafter")}
        pair = load(loading.model, loading.drafter, say=progress.say, warn=progress.warn, **settings)
        result = _answer(pair, prompt, {**asdict(answering), **asdict(sampling)}, shown, progress, trace)
    if shown.json:
        print(json.dumps(asdict(result), ensure_ascii=False))
    elif not shown.quiet:
        print(closing_line(result), file=sys.stderr)
    if result.finish_reason == "cancelled":
        raise KeyboardInterrupt


def closing_line(result: Result) -> str:
    """Counts and speeds of a finished answer in one line."""
    parts = [
        f"{result.completion_tokens} tokens",
        f"{result.tokens_per_second:.1f} tok/s",
        f"{result.rounds} rounds",
        f"accept length {result.accept_length:.2f}",
        f"prompt {result.prompt_tokens} tokens in {result.prefill_seconds:.2f} s",
        f"peak memory {result.peak_memory_bytes / 2**20:.0f} MiB",
        f"{result.mode} on {result.device}, {'exact' if result.exact else 'NOT bit-exact on this device'}",
    ]
    return "[" + " · ".join(parts) + "]"


def _answer(
    pair: Pair, prompt: str, settings: dict[str, Any], shown: TerminalOptions, progress: Any, trace: TextIO | None
) -> Result:
    from mlx_dspark.decode.round import LazyClock, SyncClock
    from mlx_dspark.engine.result import Tally

    tally, text, reasoning = Tally(), [], []
    screen = Screen(sys.stdout, show=not shown.json, thinking=not shown.quiet)
    clock = SyncClock if trace else LazyClock
    try:
        for part in pair.stream(prompt, tally=tally, progress=progress.prefill, clock=clock, **settings):
            progress.done()
            text.append(part.text)
            reasoning.append(part.reasoning)
            screen.write(part)
            if trace and part.round:
                trace.write(json.dumps(asdict(part.round), ensure_ascii=False) + "\n")
    except KeyboardInterrupt:
        tally.end("cancelled")
    finally:
        screen.end()
        if trace:
            trace.close()
    return pair.result(tally, "".join(text), "".join(reasoning))


class Screen:
    """Streams parts to a terminal or a pipe: thinking dim (plain in a pipe) and apart from the answer."""

    def __init__(self, out: TextIO, *, show: bool, thinking: bool):
        self.out, self.show, self.thinking = out, show, thinking
        self.color = out.isatty()
        self._in_reasoning = self._wrote = False

    def write(self, part: Part) -> None:
        if not self.show:
            return
        if part.reasoning and self.thinking:
            self._switch(True)
            self.out.write(part.reasoning)
        if part.text:
            self._switch(False)
            self.out.write(part.text)
        self._wrote |= bool(part.text or (part.reasoning and self.thinking))
        self.out.flush()

    def end(self) -> None:
        if self.show and self._wrote:
            self.out.write((RESET if self._in_reasoning and self.color else "") + "\n")
            self.out.flush()

    def _switch(self, reasoning: bool) -> None:
        if reasoning and not self._in_reasoning:
            self.out.write(DIM if self.color else "[thinking] ")
        elif self._in_reasoning and not reasoning:
            self.out.write((RESET if self.color else "") + "\n\n")
        self._in_reasoning = reasoning


def _prompt(shown: TerminalOptions) -> str:
    text = shown.prompt
    if text in (None, "-"):
        if text is None and sys.stdin.isatty():
            raise PromptError("no prompt: give --prompt 'text', or pipe it into standard input")
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise PromptError(f"standard input is no UTF-8 text ({error.reason}); convert it first") from None
    assert text is not None
    if not text.strip():
        raise PromptError("the prompt is empty; give at least one word")
    return text


def _open_trace(path: str | None) -> TextIO | None:
    if path is None:
        return None
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise OptionError(f"--trace {path} cannot be written ({error.strerror}); choose another file") from None
