"""OpenAI's POST /v1/completions: a text or token ids, continued as they are, without the chat template."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from mlx_dspark.decode.scores import Score
from mlx_dspark.errors import PromptError
from mlx_dspark.server import wire
from mlx_dspark.server.answer import Answer
from mlx_dspark.server.chat_completions import INERT, Scorer, finish_reason, usage
from mlx_dspark.server.deltas import Begun, Block, Broken, Delta, Ended, Text, Tokens, Waiting
from mlx_dspark.server.dialect import ORIGIN, measured, new_id, streamed
from mlx_dspark.server.errors import ApiError, openai_error
from mlx_dspark.server.prompt import text_prompt
from mlx_dspark.server.schema import OpenAIRequest, shown, validated
from mlx_dspark.server.service import Plan, Service, failed

REFUSED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "use_beam_search": (False,),
}


class Completion(OpenAIRequest):
    """The fields with an effect."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


def read(service: Service, body: Mapping[str, Any]) -> CompletionReply:
    request = validated(Completion, body, INERT, REFUSED)
    service.check_model(request.model)
    prompt = text_prompt(_ids(service, request.prompt))
    plan = service.plan(prompt, Answer(chat=False, rounds=bool(request.stream_rounds)), request, request.logprobs)
    return CompletionReply(service, plan, bool(request.stream), request.wants_usage)


def _ids(service: Service, prompt: Any) -> list[int]:
    """Ids of a text, or ids as given; a list of one of either is that one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        try:
            return service.pair.tokenizer.encode(prompt)
        except PromptError as error:
            raise ApiError(400, str(error), param="prompt") from None
    if not isinstance(prompt, list) or any(isinstance(p, (str, list)) for p in prompt):
        raise ApiError(400, f"prompt must be one text or one list of token ids (it is {shown(prompt)})", param="prompt")
    size = service.pair.target.vocab_size
    for index, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            where = f"prompt.{index}"
            raise ApiError(400, f"{where} is {shown(token)}, but token ids are whole numbers below {size}", param=where)
    return list(prompt)


class CompletionReply:
    """One answer as a text_completion or as chunks of it."""

    def __init__(self, service: Service, plan: Plan, stream: bool, wants_usage: bool):
        self.service, self.plan, self.stream = service, plan, stream
        self._wants_usage = wants_usage
        head = {"id": new_id("cmpl-"), "created": int(time.time()), "model": service.model}
        self._head = {**head, "object": "text_completion"}
        self._scorer = Scorer(service)
        self._offset = 0

    def frames(self, delta: Delta) -> list[bytes]:
        if isinstance(delta, Text):
            return [self._chunk(delta.text, scores=delta.scores)]
        if isinstance(delta, (Begun, Waiting)):
            return [self._chunk("")]
        if isinstance(delta, Tokens):
            return [self._chunk("", own=streamed(delta))]
        if isinstance(delta, Ended):
            frames = [self._chunk("", finish=finish_reason(delta), own=measured(self.service, delta))]
            if self._wants_usage:
                frames.append(wire.event({**self._head, "choices": [], "usage": usage(delta, 0)}))
            return [*frames, wire.DONE]
        if isinstance(delta, Broken):
            return [wire.event(openai_error(failed(delta))), wire.DONE]
        return []

    def body(self, blocks: Sequence[Block], ended: Ended) -> dict[str, Any]:
        text = "".join(b.text for b in blocks)
        scores = [s for b in blocks for s in b.scores]
        choice = {
            "index": 0, "text": text, "logprobs": self._logprobs(scores), "finish_reason": finish_reason(ended),
        }  # fmt: skip
        own = {ORIGIN: measured(self.service, ended)}
        return {**self._head, "choices": [choice], "usage": usage(ended, 0), **own}

    def _chunk(self, text: str, *, scores: Sequence[Score] = (), finish: str | None = None, own: Any = None) -> bytes:
        choice = {
            "index": 0,
            "text": text,
            "logprobs": self._logprobs(scores) if text else None,
            "finish_reason": finish,
        }
        return wire.event({**self._head, "choices": [choice], **({ORIGIN: own} if own is not None else {})})

    def _logprobs(self, scores: Sequence[Score]) -> dict[str, Any] | None:
        if self.plan.job.top_logprobs is None:
            return None
        tokens = [self._scorer.token(s.token) for s in scores]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [s.logprob for s in scores],
            "top_logprobs": [{self._scorer.token(t): p for t, p in s.top} for s in scores],
            "text_offset": offsets,
        }
