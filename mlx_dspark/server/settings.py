"""What a user may set when serving. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_dspark.errors import OptionError
from mlx_dspark.options import check_options, option, worded


@dataclass(frozen=True)
class ServeOptions:
    """Where to listen, who may come in, and what one request may take."""

    host: str = option("127.0.0.1", "Address to listen on; one that is not this machine's own needs --api-key.")
    port: int = option(8080, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    api_key: str | None = option(
        None, "Key every request must send (Authorization: Bearer, or x-api-key); MLX_DSPARK_API_KEY sets it too."
    )
    allow_open: bool = option(False, "Listen on other machines' reach without a key.", flag="--allow-open")
    allow_origin: tuple[str, ...] = option((), "Let pages of this origin call the server; * is any; may repeat.")
    alias: tuple[str, ...] = option((), "Another model name to answer to; may be given several times.")
    max_queue: int = option(32, "Requests that may wait; one more is refused with 429.", low=0, high=10_000)
    context_window: int | None = option(
        None, "Most tokens of prompt and answer together (default: the model's).", low=16
    )
    max_tokens: int | None = option(
        None, "Most tokens of an answer whose request sets no limit (default: what the window leaves).", low=1
    )
    max_draft: int | None = option(
        None,
        "Drafts a round: auto takes what pays, a number pins it; requests may ask for fewer.",
        low=0,
        high=64,
        word="auto",
    )
    thinking: bool = option(True, "Let the model think where a request does not say.")
    prefix_cache_gb: float = option(2.0, "Memory for states of earlier prompts, GB; 0 is off.", low=0, high=1024)
    max_body_mb: float = option(
        32.0, "Largest request body, MB; a larger one is refused with 413.", low=0.001, high=1024
    )
    keepalive: float = option(5.0, "Seconds of silence in a stream before an empty event is sent.", low=0.05, high=600)
    drain: float = option(10.0, "Seconds that running requests get to finish on shutdown.", low=0, high=3600)

    def __post_init__(self) -> None:
        worded(self)
        check_options(self)
        if self.api_key == "":
            raise OptionError("--api-key is empty, but a key has at least one character; leave it out for none")
        if not self.host:
            raise OptionError("--host is empty, but it must be an address, such as 127.0.0.1")
