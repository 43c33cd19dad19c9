"""A server as a process: the socket taken first, the pair loaded, requests served until a signal, then drained."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from mlx_dspark.engine.engine import Engine
from mlx_dspark.engine.pair import Pair
from mlx_dspark.errors import OptionError
from mlx_dspark.server.app import build
from mlx_dspark.server.gate import is_loopback
from mlx_dspark.server.service import Service
from mlx_dspark.server.settings import ServeOptions

GRACE = 2.0  # seconds that cancelled requests get to send their last bytes


class Listener(uvicorn.Server):
    """uvicorn that drains the engine when it is told to stop: finish, then cancel, then close."""

    def __init__(self, service: Service, options: ServeOptions):
        config = uvicorn.Config(
            build(service),
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(options.drain + GRACE) + 1,
        )
        super().__init__(config)
        self._engine, self._drain = service.engine, options.drain
        self._stopping = False

    def stop(self) -> None:
        """Begin to shut down; safe to call from any thread, any number of times."""
        if not self._stopping:
            self._stopping = True
            self._engine.stop_accepting()
            timer = threading.Timer(self._drain, self._engine.cancel_all)
            timer.daemon = True
            timer.start()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second cancels everything that still runs."""
        if self._stopping:
            self._engine.cancel_all()
            self.force_exit = sig == signal.SIGINT
        self.stop()


def take_socket(options: ServeOptions) -> socket.socket:
    """The bound socket, not listening yet. Raises OptionError if the address cannot be had or would lie open."""
    if not is_loopback(options.host) and not options.api_key and not options.allow_open:
        raise OptionError(
            f"--host {options.host} is in other machines' reach and there is no --api-key; give one, "
            "listen on 127.0.0.1, or say --allow-open if everyone there may use this server"
        )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((options.host, options.port))
    except (OSError, OverflowError) as error:
        taken.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(
            f"cannot listen on {options.host} port {options.port} ({reason}); stop what uses it or give another --port"
        ) from None
    return taken


def url_of(taken: socket.socket) -> str:
    host, port = taken.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(load: Callable[[], Pair], options: ServeOptions, ready: Callable[[Service, str], None]) -> None:
    """Load, call `ready` with the service and its URL, and serve until SIGINT or SIGTERM."""
    taken = take_socket(options)
    engine = Engine(load, max_queue=options.max_queue, cache_bytes=int(options.prefix_cache_gb * 1e9))
    try:
        engine.start()
        service = Service(engine, options)
        listener = Listener(service, options)
        taken.listen(2048)
        ready(service, url_of(taken))
        asyncio.run(listener.serve(sockets=[taken]))
    finally:
        taken.close()
        engine.close(GRACE)
