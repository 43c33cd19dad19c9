"""Names become folders: what is on disk first, then a resumable download from a (here: local, fake) hub."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import build
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from mlx_dspark.checkpoint.registry import KNOWN_PAIRS, drafter_for
from mlx_dspark.checkpoint.resolve import find, is_complete, missing, resolve
from mlx_dspark.errors import ModelNotFound

BAD_NAMES = {
    "./nothing": "check the path",
    "/nothing/here": "check the path",
    "~/nothing": "check the path",
    "~nobody-of-this-name/x": "check the path",
    "a/b/c": "check the path",
    "just-a-name": "no hub repository",
    "": "no hub repository",
    "org/two--dashes": "no hub repository",
    "org/tiny.git": "no hub repository",
    "org/" + "x" * 97: "no hub repository",
    "org/naïve": "no hub repository",
    "org/a b\n": "no hub repository",
    "x" * 5000: "no hub repository",
}
REPO, COMMIT = "org/tiny", "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Just enough of the hub's protocol for snapshot_download; can cut a file's transfer short once."""

    def __init__(self, files: dict[str, bytes]):
        self.files, self.log, self.cut, self.gated = files, [], "", False
        self.stalled, self.release = threading.Event(), threading.Event()
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
                    hub.stalled.set()
                    hub.release.wait(60)
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
                    if hub.gated and self.command == "GET":
                        return self.reply(403, b"{}", {"X-Error-Code": "GatedRepo"})
                    limit = len(body) // 2 if hub.cut == name and self.command == "GET" else None
                    return self.reply(200, body, headers, limit)
                return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

            do_HEAD = do_GET

        self.release.set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = build.write_target(tmp_path / "source")
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    files |= {"modeling.py": b"raise SystemExit('ran')", "README.md": b"# tiny", "LICENSE": b"none"}
    made = Hub(files)
    yield made
    made.server.shutdown()
    made.server.server_close()


BLOCKED = (
    "import socket\ndef no(*a): raise SystemExit('network used')\nsocket.socket.connect = socket.getaddrinfo = no\n"
)


def asking(hub: Hub, home: Path, name: str = REPO, before: str = "", **env: str) -> tuple[list[str], dict[str, str]]:
    """resolve(name) in a fresh process against the fake hub, with its own cache, after the code `before`."""
    code = (
        before
        + "import sys\nfrom mlx_dspark.checkpoint.resolve import resolve\nfrom mlx_dspark.errors import ModelNotFound\n"
        "try:\n    print(resolve(sys.argv[1]))\nexcept ModelNotFound as e:\n    print(e); sys.exit(2)"
    )
    settings = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HOME": str(home),
                "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "0", "NO_PROXY": "*", "no_proxy": "*", **env}  # fmt: skip
    for proxy in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        settings.pop(proxy, None)
    return [sys.executable, "-c", code, name], settings


def ask(hub: Hub, home: Path, name: str = REPO, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command, settings = asking(hub, home, name, before, **env)
    return subprocess.run(command, capture_output=True, text=True, env=settings, check=False, timeout=120)


def test_download_then_cache_then_offline(hub: Hub, tmp_path: Path) -> None:
    first = ask(hub, tmp_path / "home")
    assert first.returncode == 0, first.stdout + first.stderr
    folder = Path(first.stdout.strip().splitlines()[-1])
    assert is_complete(folder)
    assert {p.name for p in folder.iterdir()} == set(hub.files) - {"modeling.py"}
    assert not any("modeling.py" in path for _, path, _ in hub.log)
    asked = len(hub.log)
    for name in ("README.md", "LICENSE"):  # a copy another program fetched may lack what nobody reads
        (folder / name).unlink()
    again = ask(hub, tmp_path / "home", before=BLOCKED)
    assert Path(again.stdout.strip()) == folder
    offline = ask(hub, tmp_path / "other", before=BLOCKED, HF_HUB_OFFLINE="1")
    assert offline.returncode == 2
    assert "is not on this machine and HF_HUB_OFFLINE is set" in offline.stdout
    assert len(hub.log) == asked, hub.log[asked:]


@pytest.mark.slow
def test_an_incomplete_copy_is_completed(hub: Hub, tmp_path: Path) -> None:
    folder = Path(ask(hub, tmp_path / "home").stdout.strip())
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).unlink()
        offline = ask(hub, tmp_path / "home", before=BLOCKED, HF_HUB_OFFLINE="1")
        assert offline.returncode == 2
        assert "is incomplete on this machine" in offline.stdout
        assert ask(hub, tmp_path / "home").stdout.strip() == str(folder)
        assert (folder / name).read_bytes() == hub.files[name]
    (folder / "config.json").unlink()
    for tree in (folder.parents[1] / "trees").glob("*"):  # as older clients leave it, without the list of files
        tree.unlink()
    down = ask(hub, tmp_path / "home", HF_ENDPOINT="http://127.0.0.1:9")
    assert down.returncode == 2
    assert "config.json" in down.stdout
    assert "run again online" in down.stdout


def test_a_hub_that_is_down_or_refuses_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    down = ask(hub, tmp_path / "home", HF_ENDPOINT="http://127.0.0.1:9")
    hub.gated = True
    gated = ask(hub, tmp_path / "home")
    hub.gated = False
    del hub.files["model.safetensors"]
    empty = ask(hub, tmp_path / "other")
    for done, reason in ((down, "does not answer"), (gated, "gated"), (empty, "lacks model.safetensors")):
        assert done.returncode == 2
        assert reason in done.stdout
        assert len(done.stdout.strip().splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_a_dropped_connection_resumes_mid_file(hub: Hub, tmp_path: Path) -> None:
    hub.cut = "big.model"
    hub.files["big.model"] = os.urandom(25_000_000)  # the client writes in pieces of 10 MB
    done = ask(hub, tmp_path / "home")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / "big.model").read_bytes() == hub.files["big.model"]
    ranges = [r for method, path, r in hub.log if method == "GET" and path.endswith("big.model")]
    assert any(r and not r.startswith("bytes=0-") for r in ranges), ranges


def test_after_a_killed_download_finished_files_are_kept(hub: Hub, tmp_path: Path) -> None:
    hub.cut = "big.model"
    hub.files["big.model"] = os.urandom(1_000_000)
    hub.release.clear()
    command, settings = asking(hub, tmp_path / "home")
    snapshot = tmp_path / "home" / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    others = set(hub.files) - {"big.model", "modeling.py"}
    with subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert hub.stalled.wait(60)
        end = time.monotonic() + 30
        while not others <= {p.name for p in snapshot.glob("*")} and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
    hub.release.set()
    hub.cut = ""
    asked = len(hub.log)
    (snapshot / "config.json").unlink()
    assert ask(hub, tmp_path / "home").stdout.strip() == str(snapshot)
    assert (snapshot / "big.model").read_bytes() == hub.files["big.model"]
    fetched = {
        path.rsplit("/", 1)[-1] for method, path, _ in hub.log[asked:] if method == "GET" and "/resolve/" in path
    }
    assert fetched <= {"big.model", "config.json"}


def test_an_unknown_repository_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    done = ask(hub, tmp_path / "home", "org/none")
    assert done.returncode == 2
    assert "org/none" in done.stdout
    assert "Traceback" not in done.stderr


class XetError(Exception):
    """As the hub's transports raise: of no common base."""


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free space"),
        (XetError("write failed: No space left on device (os error 28)"), "free space"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "make it writable"),
        (LocalEntryNotFoundError("Got: ConnectError\nmany\nlines"), "check the connection"),
        (XetError("stream\nended " + "x" * 500), "finished files are kept"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_every_failure_has_a_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, step: str
) -> None:
    def fail(name: str, *, local_files_only: bool = False, **_: object) -> str:
        raise LocalEntryNotFoundError("not cached") if local_files_only else error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelNotFound, match=step) as caught:
        resolve("org/model", what="drafter")
    text = str(caught.value)
    assert text.startswith("--drafter org/model ")
    assert "\n" not in text
    assert len(text) < 400
    assert caught.value.__suppress_context__


def test_local_folders_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.socket.connect", lambda *a: pytest.fail("network used"))
    build.write_target(tmp_path / "org" / "here")
    assert resolve("org/here") == Path("org/here")
    studio = build.write_target(tmp_path / ".lmstudio" / "models" / "org" / "studio")
    assert resolve("org/studio") == studio
    assert resolve("~/org/here") == tmp_path / "org" / "here"
    (tmp_path / "demo").mkdir()
    assert resolve("demo") != Path("demo")
    assert resolve("./demo") == Path("./demo")
    for bad, reason in BAD_NAMES.items():
        with pytest.raises(ModelNotFound, match=reason):
            resolve(bad)
    with pytest.raises(ModelNotFound, match="is a file"):
        resolve(str(studio / "config.json"))


def test_what_a_folder_lacks(tmp_path: Path) -> None:
    folder = build.write_target(tmp_path / "model")
    assert missing(folder) is None
    index = folder / "model.safetensors.index.json"
    for text, lacks in (
        ('{"weight_map": {"a": "model.safetensors"}}', None),
        ('{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}', "model-2.safetensors"),
        ("{", "a readable"),
        ('{"weight_map": {"a": []}}', "a readable"),
        ("[]", "a readable"),
    ):
        index.write_text(text)
        assert (missing(folder) or "").startswith(lacks or ""), text
        assert is_complete(folder) == (lacks is None)
    index.unlink()
    (folder / "model.safetensors").unlink()
    assert missing(folder) == "model.safetensors"
    (folder / "config.json").unlink()
    assert missing(folder) == "config.json"


def test_the_hub_client_is_imported_only_for_its_names() -> None:
    code = (
        "import sys\nfrom mlx_dspark.checkpoint.resolve import resolve\nresolve('demo')\n"
        "assert 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_known_pairs() -> None:
    repo = "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit"
    assert drafter_for(repo) == "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16"
    assert drafter_for(f"/models/{repo.split('/')[1]}") == drafter_for(repo)
    assert drafter_for("demo") == "demo-drafter"
    assert drafter_for("org/other") is None
    assert [pair.name for pair in KNOWN_PAIRS] == ["demo", "nemotron-3.5-lightning"]
    assert is_complete(resolve("demo"))
    assert is_complete(resolve("demo-drafter"))
    assert all(figure.where for pair in KNOWN_PAIRS for figure in pair.figures)


def test_find_is_resolve_without_a_download(hub: Hub, tmp_path: Path) -> None:
    seen = "from mlx_dspark.checkpoint.resolve import find\nprint(find('org/tiny'))\n"
    first = ask(hub, tmp_path / "home", before=BLOCKED + seen + "raise SystemExit\n")
    assert first.stdout.strip() == "None"
    assert hub.log == []
    folder = ask(hub, tmp_path / "home").stdout.strip()
    again = ask(hub, tmp_path / "home", before=BLOCKED + seen + "raise SystemExit\n")
    assert again.stdout.strip() == folder
    assert find(folder) == Path(folder)
    assert find("demo") == resolve("demo")
    (tmp_path / "empty").mkdir()
    assert find(str(tmp_path / "empty")) is None
    assert not any(find(name) for name in ("./nothing", "a/b/c", "just-a-name", "", "org/tiny.git"))
