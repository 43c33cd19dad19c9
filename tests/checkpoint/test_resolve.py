"""Names become folders: what is on disk first, then a resumable download from a (here: local, fake) hub."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import build
import pytest

from mlx_dspark.checkpoint.resolve import drafter_for, is_complete, resolve
from mlx_dspark.errors import ModelNotFound

REPO, COMMIT = "org/tiny", "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Just enough of the hub's protocol for snapshot_download; can cut a file's transfer short once."""

    def __init__(self, files: dict[str, bytes]):
        self.files, self.log, self.cut = files, [], ""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def reply(self, code: int, body: bytes, headers: dict[str, str], limit: int | None = None) -> None:
                self.send_response(code)
                for key, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body[:limit])
                if limit is not None:
                    self.close_connection = True

            def do_GET(self) -> None:
                name = self.path.split("?")[0].rsplit("/", 1)[-1]
                hub.log.append((self.command, self.path, self.headers.get("Range")))
                if self.path.startswith(f"/api/models/{REPO}/tree"):
                    tree = [{"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()}
                            for n, b in hub.files.items()]  # fmt: skip
                    return self.reply(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
                if self.path.startswith(f"/api/models/{REPO}"):
                    info = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": n} for n in hub.files]}
                    return self.reply(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
                if self.path.startswith(f"/{REPO}/resolve/") and name in hub.files:
                    body = hub.files[name]
                    headers = {
                        "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
                        "X-Repo-Commit": COMMIT,
                        "Accept-Ranges": "bytes",
                    }
                    wanted = self.headers.get("Range")
                    if wanted and self.command == "GET":
                        begin = int(wanted.removeprefix("bytes=").split("-")[0])
                        headers["Content-Range"] = f"bytes {begin}-{len(body) - 1}/{len(body)}"
                        return self.reply(206, body[begin:], headers)
                    limit = len(body) // 2 if hub.cut == name and self.command == "GET" else None
                    return self.reply(200, body, headers, limit)
                return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

            do_HEAD = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = build.write_target(tmp_path / "source")
    files = {p.name: p.read_bytes() for p in folder.iterdir()} | {"modeling.py": b"raise SystemExit('ran')"}
    made = Hub(files)
    yield made
    made.server.shutdown()
    made.server.server_close()


def ask(hub: Hub, home: Path, name: str = REPO, **env: str) -> subprocess.CompletedProcess[str]:
    """resolve(name) in a fresh process against the fake hub, with its own cache."""
    code = (
        "import sys\nfrom mlx_dspark.checkpoint.resolve import resolve\nfrom mlx_dspark.errors import ModelNotFound\n"
        "try:\n    print(resolve(sys.argv[1]))\nexcept ModelNotFound as e:\n    print(e); sys.exit(2)"
    )
    settings = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HOME": str(home),
                "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "*", "no_proxy": "*", **env}  # fmt: skip
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        settings.pop(proxy, None)
    return subprocess.run(
        [sys.executable, "-c", code, name], capture_output=True, text=True, env=settings, check=False, timeout=120
    )


def test_download_then_cache_then_offline(hub: Hub, tmp_path: Path) -> None:
    first = ask(hub, tmp_path / "home")
    assert first.returncode == 0, first.stdout + first.stderr
    folder = Path(first.stdout.strip().splitlines()[-1])
    assert is_complete(folder)
    assert not (folder / "modeling.py").exists()
    asked = len(hub.log)
    again = ask(hub, tmp_path / "home")
    assert Path(again.stdout.strip()) == folder
    assert len(hub.log) == asked, hub.log[asked:]
    offline = ask(hub, tmp_path / "other", HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert "HF_HUB_OFFLINE" in offline.stdout
    assert len(hub.log) == asked


def test_an_interrupted_download_resumes(hub: Hub, tmp_path: Path) -> None:
    hub.cut = "big.model"
    hub.files["big.model"] = os.urandom(25_000_000)  # the client writes in pieces of 10 MB
    done = ask(hub, tmp_path / "home")
    if done.returncode:
        hub.cut = ""
        done = ask(hub, tmp_path / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / "big.model").read_bytes() == hub.files["big.model"]
    ranges = [r for method, path, r in hub.log if method == "GET" and path.endswith("big.model")]
    assert any(r and not r.startswith("bytes=0-") for r in ranges), ranges


def test_an_unknown_repository_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    done = ask(hub, tmp_path / "home", "org/none")
    assert done.returncode == 2
    assert "org/none" in done.stdout
    assert "Traceback" not in done.stderr


def test_local_folders_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.socket.connect", lambda *a: pytest.fail("network used"))
    build.write_target(tmp_path / "org" / "here")
    assert resolve("org/here") == Path("org/here")
    studio = build.write_target(tmp_path / ".lmstudio" / "models" / "org" / "studio")
    assert resolve("org/studio") == studio
    for bad in ("./nothing", "a/b/c", "just-a-name", str(studio / "config.json")):
        with pytest.raises(ModelNotFound):
            resolve(bad)


def test_known_pairs() -> None:
    repo = "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit"
    assert drafter_for(repo) == "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16"
    assert drafter_for(f"/models/{repo.split('/')[1]}") == drafter_for(repo)
    assert drafter_for("demo") == "demo-drafter"
    assert drafter_for("org/other") is None
    assert is_complete(resolve("demo"))
    assert is_complete(resolve("demo-drafter"))
