"""`mlx-dspark serve`: load a pair, say what is served and how to reach it, answer until stopped."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from mlx_dspark.cli.flags import collect
from mlx_dspark.engine.memory import machine_bytes, state_bytes
from mlx_dspark.engine.settings import LoadOptions
from mlx_dspark.server.settings import ServeOptions

if TYPE_CHECKING:
    from mlx_dspark.server.service import Service

KEY_VARIABLE = "MLX_DSPARK_API_KEY"


def run(values: dict[str, Any]) -> None:
    """The whole command from parsed flag values."""
    loading: LoadOptions = collect(LoadOptions, values)
    serving: ServeOptions = collect(ServeOptions, values)
    loading = replace(loading, calibrate=loading.calibrate and serving.max_draft is None)
    if serving.api_key is None and os.environ.get(KEY_VARIABLE):
        serving = replace(serving, api_key=os.environ[KEY_VARIABLE])
    from mlx_dspark.cli.progress import Progress
    from mlx_dspark.engine.load import load
    from mlx_dspark.server.run import serve

    with Progress(sys.stderr, enabled=True) as progress:
        settings = {k: v for k, v in asdict(loading).items() if k not in ("model", "drafter")}

        def ready(service: Service, url: str) -> None:
            progress.done()
            print(banner(service, url), file=sys.stderr, flush=True)

        settings |= {"say": progress.say, "warn": progress.warn}
        serve(lambda: load(loading.model, loading.drafter, **settings), serving, ready)


def banner(service: Service, url: str) -> str:
    """What is loaded, whether it is exact, what memory it may take, and lines to try."""
    pair, options = service.pair, service.options
    most = options.max_draft
    learnt = "as many as pay on this machine" + ("" if pair.calibration else ", learnt while decoding")
    cap = learnt if most is None else "none" if most == 0 else f"up to {most} a round"
    exact = "drafted text equals plain text bit for bit" if pair.widths.exact else "NOT bit-exact on this device"
    key = ' -H "Authorization: Bearer $KEY"' if options.api_key else ""
    body = f'{{"model": "{service.model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    lines = [
        f"mlx-dspark serves {service.model} on {url}",
        f"  drafter   {pair.names['drafter'] or 'none'} ({pair.drafter.name}); drafts: {cap}",
        f"  exact     {exact} ({pair.names['device']})",
        f"  memory    {memory_line(service)}",
        f"  access    {'with the API key' if options.api_key else 'no key'}; queue of {options.max_queue}; "
        f"window of {service.window} tokens",
        f"  page      {url}/",
        f"  OpenAI    {url}/v1        curl {url}/v1/chat/completions{key} -d '{body}'",
        f"  Anthropic {url}           mlx-dspark claude --url {url}",
        "  stop      Ctrl-C",
    ]
    return "\n".join(lines)


def memory_line(service: Service) -> str:
    """Weights, one full window and the prefix cache against what the machine has."""
    pair = service.pair
    window = state_bytes(pair.config, service.window, pair.target.dtype.size)
    cache = int(service.options.prefix_cache_gb * 1e9)
    need, have = pair.nbytes + window + cache, machine_bytes()
    parts = f"weights {_size(pair.nbytes)} + full window {_size(window)} + prefix cache up to {_size(cache)}"
    verdict = "" if need < 0.9 * have else "; TIGHT: lower --context-window or --prefix-cache-gb"
    return f"{parts} = {_size(need)} of {_size(have)}{verdict}"


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
