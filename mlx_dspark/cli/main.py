"""`mlx-dspark`: the table of commands. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.checkpoint.convert_options import ConvertOptions
from mlx_dspark.cli.agents import AgentOptions
from mlx_dspark.cli.calibrate import CalibrateOptions
from mlx_dspark.cli.doctor import DoctorOptions
from mlx_dspark.cli.flags import argument, command, parameters, rest
from mlx_dspark.cli.generate import TerminalOptions
from mlx_dspark.cli.models import ModelsOptions
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.engine.settings import GenerateOptions, LoadOptions
from mlx_dspark.errors import DsparkError
from mlx_dspark.server.settings import ServeOptions
from mlx_dspark.version import __version__

app = typer.Typer(
    name="mlx-dspark",
    help="Answers of large hybrid language models, faster and not one token different: lossless speculative decoding "
    "on MLX. Start with: mlx-dspark generate --prompt 'Hello'",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mlx-dspark {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _generate(values: dict[str, Any]) -> None:
    """Answer one prompt in the terminal.

    Without --model a small embedded pair answers offline (toy quality). The text is the same with drafting on or
    off; the closing line says what drafting did.
    """
    from mlx_dspark.cli.generate import run

    run(values)


GENERATE = (TerminalOptions, LoadOptions, GenerateOptions, SamplingParams)
app.command("generate")(command(_generate, parameters(*GENERATE)))


def _serve(values: dict[str, Any]) -> None:
    """Serve OpenAI's and Anthropic's APIs, and a page to chat on, at one port.

    Without --model the small embedded pair is served. Listens on this machine alone unless told otherwise.
    """
    from mlx_dspark.cli.serve import run

    run(values)


SERVE = (LoadOptions, ServeOptions)
app.command("serve")(command(_serve, parameters(*SERVE)))


def _benchmark(values: dict[str, Any]) -> None:
    """Measure plain against drafted decoding on this machine, check that the text is the same, and show it.

    Without --model the small embedded pair is measured (about a minute). Exit code 1: a drafted run differed from
    plain decoding, crashed, ended early or swapped; its speed is not reported. Ctrl-C keeps the trials that are done.
    """
    from mlx_dspark.cli.benchmark import run

    raise typer.Exit(run(values))


BENCHMARK = (LoadOptions, BenchmarkOptions)
NOT_IN_BENCHMARK = ("mode", "lookup_drafts")  # --modes says it
app.command("benchmark")(command(_benchmark, parameters(*BENCHMARK, leave=NOT_IN_BENCHMARK)))


def _models(values: dict[str, Any]) -> None:
    """List the pairs this program knows, what of them is on this machine, and how to run them.

    Other nemotron_h targets with a DSpark drafter run too: name both, --model and --drafter. A pair's page comes from
    benchmark --html; --index FOLDER makes one page of links to all of a folder's.
    """
    from mlx_dspark.cli.models import run

    run(values)


app.command("models")(command(_models, parameters(ModelsOptions)))


def _agent(name: str, product: str) -> None:
    """Register the command that starts an agent; words it does not know go to the agent."""

    def start(values: dict[str, Any]) -> None:
        from mlx_dspark.cli.agents import run

        run(name, values, values.pop("arguments") or [])

    start.__doc__ = f"""Start {product}, if it is installed, against a running server.

    Nothing but environment and command line is set: no file changes. Words after -- go to {name}.
    """
    words = rest("arguments", f"Words for {name} itself, after -- where they are options of both.")
    app.command(name, context_settings={"ignore_unknown_options": True})(
        command(start, [*parameters(AgentOptions), words])
    )


_agent("claude", "Claude Code")
_agent("codex", "Codex")


def _convert(values: dict[str, Any]) -> None:
    """Turn NVIDIA's NVFP4 drafter into a bf16 repository, or into MLX's own NVFP4 form.

    SRC is a folder or a hub repository, DST a new folder. The result is complete or absent, never half written.
    """
    from mlx_dspark.cli.convert import run

    run(**values)


app.command("convert")(
    command(
        _convert,
        [
            argument("src", "A local folder or a hub repository with NVFP4 tensors."),
            argument("dst", "The folder to write."),
            *parameters(ConvertOptions),
        ],
    )
)


def _calibrate(values: dict[str, Any]) -> None:
    """Measure what target steps and drafts cost on this machine, for `--max-draft auto` to decide by.

    generate and serve do so by themselves, in a few seconds, when nothing is stored; this takes longer contexts too.
    """
    from mlx_dspark.cli.calibrate import run

    run(values)


CALIBRATE = (LoadOptions, CalibrateOptions)
app.command("calibrate")(command(_calibrate, parameters(*CALIBRATE, leave=("calibrate",))))


def _doctor(values: dict[str, Any]) -> None:
    """Say what this machine runs: versions, device, kernels, bit-exactness of a pair, where models are looked for."""
    from mlx_dspark.cli.doctor import run

    raise typer.Exit(run(values))


app.command("doctor")(command(_doctor, parameters(DoctorOptions)))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's error is one line on stderr and exit code 2, Ctrl-C is 130."""
    sys.exit(_guarded(lambda: app(arguments, standalone_mode=True)))


def _guarded(run: Callable[[], Any]) -> int:
    try:
        run()
    except DsparkError as error:
        print(f"mlx-dspark: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("\nmlx-dspark: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    return 0
