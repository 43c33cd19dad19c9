"""The server's own bars: exactness through HTTP, what the prefix cache saves, and what HTTP costs.

    python bench/serve.py [--model demo] [--prompts FILE] [--limit N] [--tokens 24] [--part exact,cache,overhead]

exact: every prompt and a second turn of it, plain and drafted on a server without a cache, then plain and at several
draft lengths on one with it, where every answer but the first is warm; counts answers that differ in any token. cache: time to first token of a long prompt, cold, repeated and as a next turn. overhead: decode
tok/s reported over HTTP against `Pair.generate`, alternating. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from mlx_dspark import load


class Served:
    """A server process."""

    def __init__(self, *words: str):
        command = [sys.executable, "-m", "mlx_dspark", "serve", "--port", "0", *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"serves (\S+) on (http://\S+)", line):
                self.model, url = found.groups()
                self.http = httpx.Client(base_url=url, timeout=600)
            if "Ctrl-C" in line:
                break

    def cpu_seconds(self) -> float:
        """CPU time the process has taken so far (Linux; 0 elsewhere)."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        if not stat.exists():
            return 0.0
        user, system = stat.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def chat(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        reply = self.http.post("/v1/chat/completions", json={"messages": messages, **more})
        reply.raise_for_status()
        found: dict[str, Any] = reply.json()
        return found

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def said(reply: dict[str, Any]) -> tuple[str, str, str, int]:
    """Text, reasoning, finish reason and number of tokens of a whole answer."""
    choice = reply["choices"][0]
    message = choice["message"]
    tokens = reply["usage"]["completion_tokens"]
    return message["content"] or "", message.get("reasoning_content", ""), choice["finish_reason"], tokens


def spelled(served: Served, messages: list[dict[str, Any]], **more: Any) -> tuple[list[Any], tuple[Any, ...], int]:
    """An answer streamed: its tokens one by one, the same as `said`, and how many prompt tokens were cached."""
    body = {
        "messages": messages,
        "stream": True,
        "stream_rounds": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    tokens, texts, finish, usage = [], {"content": "", "reasoning_content": ""}, "", {}
    with served.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            usage = event.get("usage") or usage
            tokens += [t[:2] for t in event.get("mlx_dspark", {}).get("tokens", ())]
            for choice in event["choices"]:
                finish = choice["finish_reason"] or finish
                for key in texts:
                    texts[key] += choice["delta"].get(key) or ""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens, (texts["content"], texts["reasoning_content"], finish, usage["completion_tokens"]), cached


def exact(warm: Served, cold: Served, prompts: list[list[dict[str, Any]]], tokens: int) -> dict[str, Any]:
    """Answers that are not the cold plain one's, token by token, over all prompts and their second turns."""
    answers = differing = cached = 0
    counted = 0
    for index, messages in enumerate(prompts):
        thinking = {"chat_template_kwargs": {"enable_thinking": index % 2 == 0}}
        how = {"temperature": 0} if index % 3 else {"temperature": 0.8, "seed": index}
        common = {"max_tokens": tokens, **thinking, **how}
        turns = messages
        for turn in range(2):
            wanted, plain, _ = spelled(cold, turns, mode="baseline", **common)
            differing += said(cold.chat(turns, max_draft=3, **common)) != plain
            for more in (
                {},
                {"mode": "baseline"},
                {"max_draft": 1},
                {"max_draft": 2},
                {"max_draft": 4},
                {"max_draft": 7},
            ):
                found, whole, hit = spelled(warm, turns, **common, **more)
                differing += (found, whole) != (wanted, plain)
                cached += hit > 0
            answers += 7
            counted += 7 * plain[3]
            if turn == 0:
                answer = {"role": "assistant", "content": plain[0], "reasoning_content": plain[1]}
                turns = [*messages, answer, {"role": "user", "content": "Say that again, shorter."}]
        print(f"{index + 1}/{len(prompts)}: {answers} answers, {differing} differ, {cached} from the cache", flush=True)
    return {"answers": answers, "tokens": counted, "differing": differing, "from_cache": cached}


def streamed(served: Served, body: dict[str, Any]) -> tuple[float, float, dict[str, Any], bytes]:
    """By a client that does nothing else: seconds from the request to the first token's bytes, from there to the last
    one's; the closing block; all bytes."""
    url = served.http.base_url
    text = json.dumps({**body, "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.host}\r\nconnection: close\r\ncontent-length: {len(text)}\r\n\r\n"
    arrivals, parts = [], []
    begun = time.perf_counter()
    with socket.create_connection((url.host, url.port or 80)) as wire:
        wire.sendall(head.encode() + text)
        while part := wire.recv(1 << 20):
            arrivals.append(time.perf_counter())
            parts.append(part)
    holds = [i for i, part in enumerate(parts) if re.search(rb'content":"[^"]', part)]
    found = re.search(rb'"mlx_dspark":(\{[^}]*\})', b"".join(parts))
    assert found
    return arrivals[holds[0]] - begun, arrivals[holds[-1]] - arrivals[holds[0]], json.loads(found[1]), b"".join(parts)


def cache(warm: Served, repeats: int) -> dict[str, Any]:
    """Median seconds a client waits for the first token of a prompt of about 2,000 tokens: cold, repeated, next turn."""
    waits: dict[str, list[float]] = {"cold": [], "repeat": [], "next_turn": []}
    cached: dict[str, int] = {}
    tokens = 0
    for index in range(repeats):
        words = " ".join(f"note {index} {i} says {i * 7 % 11};" for i in range(160))
        first = [{"role": "user", "content": words}]
        answer = ""
        for name, seen in waits.items():
            more = [{"role": "assistant", "content": answer or "Yes."}, {"role": "user", "content": "And note 3?"}]
            messages = [*first, *more] if name == "next_turn" else first
            begun, _, own, text = streamed(warm, {"messages": messages, "max_tokens": 24})
            seen.append(begun)
            cached[name] = own["cached_tokens"]
            answer = "".join(json.loads(f'"{t.decode()}"') for t in re.findall(rb'"content":"((?:[^"\\]|\\.)*)"', text))
    tokens = warm.chat(first, max_tokens=1)["usage"]["prompt_tokens"]
    middle = {name: statistics.median(found) for name, found in waits.items()}
    return {
        "prompt_tokens": tokens,
        "cached": cached,
        **{f"{name}_s": round(seconds, 4) for name, seconds in middle.items()},
        "repeat_ratio": round(middle["cold"] / middle["repeat"], 1),
        "next_turn_ratio": round(middle["cold"] / middle["next_turn"], 1),
    }


def overhead(warm: Served, model: str, repeats: int) -> dict[str, Any]:
    """Tok/s over HTTP, as a client sees them and as the server counts them, over tok/s of the Python API; alternating.

    `cpu_ratio` is generate's CPU time over the server's, whole requests: it holds on a machine that others use too.
    """
    pair = load(model)
    prompt = "Write a Python function that lists the files of a folder."
    more = {"max_tokens": 256, "temperature": 0, "logit_bias": dict.fromkeys(sorted(pair.eos_ids), -100)}
    body = {"messages": [{"role": "user", "content": prompt}], **more}
    found: dict[str, Any] = {}
    for max_draft in (0, 4):
        client, server = [], []
        cpu = [0.0, 0.0]
        for turn in range(repeats + 1):
            marks = time.process_time(), warm.cpu_seconds()
            result = pair.generate(prompt, max_draft=max_draft, **more)
            own_cpu = time.process_time() - marks[0]
            _, seconds, own, _ = streamed(warm, {**body, "max_draft": max_draft})
            if turn:
                cpu = [cpu[0] + own_cpu, cpu[1] + warm.cpu_seconds() - marks[1]]
                client.append((result.completion_tokens - 1) / seconds / result.tokens_per_second)
                server.append(own["tokens_per_second"] / result.tokens_per_second)
        found[f"max_draft {max_draft}"] = {
            "client_ratio": round(statistics.median(client), 3),
            "server_ratio": round(statistics.median(server), 3),
            "cpu_ratio": round(cpu[0] / cpu[1], 3) if cpu[1] else None,
            "generate_tok_s": round(result.tokens_per_second, 1),
            "all": [round(r, 3) for r in client],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", default="exact,cache,overhead")
    args = parser.parse_args()
    prompts = [
        [{"role": m["role"], "content": m["content"]} for m in json.loads(line)["messages"]]
        for line in (args.prompts.read_text("utf-8").splitlines() if args.prompts else ())
    ][: args.limit] or [[{"role": "user", "content": "Hello"}]]
    found: dict[str, Any] = {"model": args.model, "load": os.getloadavg()[0]}
    if "overhead" in args.part:  # on a fresh server: a process that has had long prompts decodes a little slower
        fresh = Served("--model", args.model)
        found["overhead"] = overhead(fresh, args.model, args.repeats)
        fresh.close()
    warm = Served("--model", args.model)
    try:
        if "cache" in args.part:
            found["cache"] = cache(warm, args.repeats)
        if "exact" in args.part:
            cold = Served("--model", args.model, "--prefix-cache-gb", "0")
            found["exact"] = exact(warm, cold, prompts, args.tokens)
            cold.close()
    finally:
        warm.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
