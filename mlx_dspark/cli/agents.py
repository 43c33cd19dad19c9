"""`mlx-dspark claude` and `mlx-dspark codex`: an installed agent against a running server, by environment alone.

No file of the agent's is changed: Claude Code reads where to go from variables, Codex from -c overrides and a variable
for the key, so that closing the terminal undoes everything.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_dspark.cli.flags import collect
from mlx_dspark.errors import DsparkError, OptionError
from mlx_dspark.options import check_options, option

KEY_VARIABLE = "MLX_DSPARK_API_KEY"
PROVIDER = "mlx-dspark"


class AgentError(DsparkError):
    """The agent or the server is not there."""


@dataclass(frozen=True)
class AgentOptions:
    """Which server an agent is to use."""

    url: str = option("http://127.0.0.1:8080", "Where `mlx-dspark serve` listens.")
    api_key: str | None = option(None, f"The server's key; {KEY_VARIABLE} sets it too.")
    print_env: bool = option(False, "Print what would be set and run, and stop.", flag="--print-env")

    def __post_init__(self) -> None:
        check_options(self)
        if not self.url.startswith(("http://", "https://")):
            raise OptionError(f"--url is {self.url!r}, but it must begin with http:// or https://")


@dataclass(frozen=True)
class Launch:
    """A command line with the variables it needs; variables in `without` would lead the agent elsewhere."""

    command: list[str]
    variables: Mapping[str, str]
    without: tuple[str, ...] = ()


def run(agent: str, values: dict[str, Any], arguments: Sequence[str]) -> None:
    """Become the agent; returns only for --print-env."""
    options: AgentOptions = collect(AgentOptions, values)
    key = options.api_key or os.environ.get(KEY_VARIABLE) or "none"
    url = options.url.rstrip("/")
    model = served_model(url, key)
    launch = {"claude": claude, "codex": codex}[agent](url, key, model, arguments)
    if options.print_env:
        print(printed(launch))
        return
    if shutil.which(agent) is None:
        package = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex"}[agent]
        raise AgentError(f"{agent} is not installed; install it: npm install -g {package}")
    environment = {k: v for k, v in os.environ.items() if k not in launch.without}
    os.execvpe(agent, launch.command, {**environment, **launch.variables})


def claude(url: str, key: str, model: str, arguments: Sequence[str]) -> Launch:
    """Every model Claude Code may ask for by itself is the served one."""
    defaults = [f"ANTHROPIC_DEFAULT_{kind}_MODEL" for kind in ("OPUS", "SONNET", "HAIKU")]
    names = ["ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL", *defaults]
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": key,
        **dict.fromkeys(names, model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "API_TIMEOUT_MS": "3000000",
    }
    return Launch(["claude", *arguments], variables, ("ANTHROPIC_API_KEY",))


def codex(url: str, key: str, model: str, arguments: Sequence[str]) -> Launch:
    """A provider given on the command line, which Codex takes in place of its configuration file."""
    provider = (
        f'{{name={json.dumps(PROVIDER)}, base_url={json.dumps(url + "/v1")}, wire_api="responses", '
        f'env_key="{KEY_VARIABLE}"}}'
    )
    overrides = (
        f"model={json.dumps(model)}",
        f"model_provider={json.dumps(PROVIDER)}",
        f"model_providers.{PROVIDER}={provider}",
    )
    command = ["codex", *(word for one in overrides for word in ("-c", one)), *arguments]
    return Launch(command, {KEY_VARIABLE: key})


def printed(launch: Launch) -> str:
    """The launch as lines for a shell."""
    lines = [f"unset {name}" for name in launch.without]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in launch.variables.items()]
    return "\n".join([*lines, shlex.join(launch.command)])


def served_model(url: str, key: str) -> str:
    """The first model the server lists. Raises AgentError if it cannot be asked."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"x-api-key": key})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return str(json.load(reply)["data"][0]["id"])
    except urllib.error.HTTPError as error:
        reason = "it wants another key; give --api-key" if error.code == 401 else f"it answered {error.code}"
        raise AgentError(f"the server at {url} cannot be used: {reason}") from None
    except (OSError, ValueError, LookupError) as error:
        raise AgentError(
            f"no server answers at {url} ({error}); start one with mlx-dspark serve, or give its --url"
        ) from None
