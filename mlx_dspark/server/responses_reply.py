"""A Responses answer: the response object, and the events that build it item by item.

Reasoning, text and calls are items; each opens, grows and is done before the next one opens.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mlx_dspark.server import wire
from mlx_dspark.server.deltas import (
    Begun,
    Block,
    Broken,
    CallArguments,
    CallBegun,
    Collector,
    Delta,
    Ended,
    Reasoning,
    Text,
    Waiting,
)
from mlx_dspark.server.dialect import ORIGIN, measured, new_id
from mlx_dspark.server.service import Plan, Service

PREFIX = {"reasoning": "rs_", "text": "msg_", "call": "fc_"}


class ResponsesReply:
    """`echo` are the request's fields that a response repeats; `namespaces` those of tools that have one."""

    def __init__(
        self, service: Service, plan: Plan, stream: bool, echo: Mapping[str, Any], namespaces: Mapping[str, str]
    ):
        self.service, self.plan, self.stream = service, plan, stream
        self._echo, self._namespaces = echo, namespaces
        self._id, self._created = new_id("resp_"), int(time.time())
        self._collected = Collector()
        self._done: list[dict[str, Any]] = []
        self._item = ""
        self._sequence = -1

    def frames(self, delta: Delta) -> list[bytes]:
        if isinstance(delta, Begun):
            made = self._response("in_progress", [])
            return [self._event("response.created", response=made), self._event("response.in_progress", response=made)]
        if isinstance(delta, Waiting):
            return [self._event("response.in_progress", response=self._response("in_progress", self._done))]
        if isinstance(delta, Ended):
            return [*self._close(cut=delta.reason == "length"), self._ending(delta)]
        if isinstance(delta, Broken):
            error = {"code": "server_error", "message": delta.message}
            return [self._event("response.failed", response={**self._response("failed", self._done), "error": error})]
        if isinstance(delta, (Reasoning, Text, CallBegun, CallArguments)):
            return self._grow(delta)
        return []

    def body(self, blocks: Sequence[Block], ended: Ended) -> dict[str, Any]:
        items = [self._output(b, new_id(PREFIX[b.kind]), "completed") for b in blocks]
        if items and ended.reason == "length":
            items[-1]["status"] = "incomplete"
        return self._final(items, ended)

    def _grow(self, delta: Reasoning | Text | CallBegun | CallArguments) -> list[bytes]:
        before = len(self._collected.blocks)
        self._collected.add(delta)
        block = self._collected.blocks[-1]
        frames = []
        if len(self._collected.blocks) > before:
            frames += self._close_block(before - 1, "completed") + self._open(block)
        if isinstance(delta, CallBegun):
            return frames
        names = {"reasoning": "reasoning_text", "text": "output_text", "call": "function_call_arguments"}
        more: dict[str, Any] = {} if block.kind == "call" else {"content_index": 0}
        if block.kind == "text":
            more["logprobs"] = []
        frames.append(self._event(f"response.{names[block.kind]}.delta", **self._place(), delta=delta.text, **more))
        return frames

    def _open(self, block: Block) -> list[bytes]:
        self._item = new_id(PREFIX[block.kind])
        fresh = Block(block.kind, id=block.id, name=block.name)
        item = self._output(fresh, self._item, "in_progress")
        if block.kind != "call":
            item["content"] = []
        frames = [self._event("response.output_item.added", output_index=len(self._done), item=item)]
        if block.kind != "call":
            part = _part(fresh)
            frames.append(self._event("response.content_part.added", **self._place(), content_index=0, part=part))
        return frames

    def _close(self, cut: bool) -> list[bytes]:
        return self._close_block(len(self._collected.blocks) - 1, "incomplete" if cut else "completed")

    def _close_block(self, index: int, status: str) -> list[bytes]:
        if index < 0 or len(self._done) > index:
            return []
        block = self._collected.blocks[index]
        place = self._place()
        if block.kind == "call":
            done = {"arguments": block.text, "name": block.name}
            frames = [self._event("response.function_call_arguments.done", **place, **done)]
        else:
            place["content_index"] = 0
            text = block.kind == "text"
            name = "output_text" if text else "reasoning_text"
            more: dict[str, Any] = {"logprobs": []} if text else {}
            frames = [
                self._event(f"response.{name}.done", **place, text=block.text, **more),
                self._event("response.content_part.done", **place, part=_part(block)),
            ]
        item = self._output(block, self._item, status)
        frames.append(self._event("response.output_item.done", output_index=len(self._done), item=item))
        self._done.append(item)
        return frames

    def _ending(self, ended: Ended) -> bytes:
        final = self._final(self._done, ended)
        return self._event(f"response.{final['status']}", response=final)

    def _final(self, items: list[dict[str, Any]], ended: Ended) -> dict[str, Any]:
        result = ended.finished.result
        cut = ended.reason == "length"
        return {
            **self._response("incomplete" if cut else "completed", items),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": result.prompt_tokens,
                "input_tokens_details": {"cached_tokens": ended.finished.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": ended.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": self.plan.answer.reasoning_tokens},
                "total_tokens": result.prompt_tokens + ended.completion_tokens,
            },
            ORIGIN: measured(self.service, ended),
        }

    def _response(self, status: str, items: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.service.model,
            "output": list(items),
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": None,
            **self._echo,
        }

    def _output(self, block: Block, item_id: str, status: str) -> dict[str, Any]:
        """A block as an output item."""
        if block.kind == "call":
            item = {"id": item_id, "type": "function_call", "status": status, "call_id": block.id, "name": block.name}
            space = {"namespace": self._namespaces[block.name]} if block.name in self._namespaces else {}
            return {**item, **space, "arguments": block.text}
        if block.kind == "reasoning":
            head = {"id": item_id, "type": "reasoning", "status": status, "summary": []}
            return {**head, "content": [_part(block)], "encrypted_content": None}
        return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": [_part(block)]}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": len(self._done)}

    def _event(self, kind: str, **data: Any) -> bytes:
        self._sequence += 1
        return wire.event({"type": kind, "sequence_number": self._sequence, **data}, kind)


def _part(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
