"""A checkpoint with a script: the next token depends on the last one alone, so any answer is written into weights.

A message with {S1} in it picks script 1; a tool's result picks the one after the last. Scripts are cut into tokens
that hold any bytes, half characters too. Real nemotron_h on disk: nothing in the program under test knows of it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import build
import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlx_dspark.models.drafter import DraftBlock, DraftRequest, block_of

SPECIALS = ("<s>", "<|im_start|>", "<|im_end|>", "</s>")
EOS = 258
TEMPLATE = (
    "{%- set ns = namespace(pick=0) -%}"
    "{%- for t in tools or [] -%}<tool {{ t.function.name }}>{%- endfor -%}"
    "{%- for m in messages -%}"
    "<|im_start|>{{ m.role }}\n"
    "{%- if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif -%}{{ m.content }}"
    "{%- for c in m.tool_calls or [] -%}<call {{ c.function.name }}"
    "{%- for k, v in c.function.arguments.items() %} {{ k }}={{ v | tojson }}{% endfor -%}>{%- endfor -%}"
    "<|im_end|>\n"
    "{%- if m.role == 'tool' -%}{%- set ns.pick = ns.pick + 1 -%}{%- else -%}"
    "{%- for k in range(24) -%}{%- if ('{S' ~ k ~ '}') in m.content -%}{%- set ns.pick = k -%}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n"
    "{{ '<think></think>' if enable_thinking is defined and not enable_thinking else '<think>\n' }}<|S{{ ns.pick }}|>"
    "{%- endif -%}"
)


def pieces(scripts: Sequence[bytes], most: int = 3) -> list[list[bytes]]:
    """Each script cut into pieces that occur nowhere else, as short as that allows."""
    used: set[bytes] = set()
    out = []
    for script in scripts:
        cut, at = [], 0
        while at < len(script):
            size = 2 if at % 3 else most
            while script[at : at + size] in used and at + size < len(script):
                size += 1
            piece = script[at : at + size]
            while piece in used or len(piece) < 2:  # the tail is taken: join it to the piece before
                piece = cut.pop() + piece
                at, size = len(script), 0
            used.add(piece)
            cut.append(piece)
            at += size
        out.append(cut)
    return out


def write(folder: Path, scripts: Sequence[str], window: int = 4096) -> dict[int, int]:
    """Write the checkpoint; returns what token follows which."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = dict(zip(range(256), _byte_letters(), strict=True))
    cut = pieces([s.encode() for s in scripts])
    words = [SPECIALS[i] for i in range(4)] + [f"<|S{k}|>" for k in range(len(scripts))]
    first = 256 + len(words)
    ids = {piece: first + i for i, piece in enumerate(p for script in cut for p in script)}
    follows: dict[int, int] = {}
    for k, script in enumerate(cut):
        chain = [260 + k, *(ids[p] for p in script), EOS]
        follows.update(itertools.pairwise(chain))
    vocab = {letters[i]: i for i in range(256)}
    vocab |= {"".join(letters[b] for b in piece): i for piece, i in ids.items()}
    inner = Tokenizer(models.BPE(vocab={**vocab, **{w: 256 + i for i, w in enumerate(words)}}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(w, special=True) for w in words])
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "bos_token": "<s>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    size = -(-(first + len(ids)) // 64) * 64
    config = {**build.TARGET, "hybrid_override_pattern": "M*E", "vocab_size": size, "hidden_size": size}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": window}))
    mx.save_safetensors(str(folder / "model.safetensors"), {k: mx.array(v) for k, v in _arrays(size, follows).items()})
    return follows


def _byte_letters() -> list[str]:
    """The character byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def _arrays(size: int, follows: Mapping[int, int]) -> dict[str, np.ndarray]:
    head = np.zeros((size, size))
    for token in range(size):
        head[follows.get(token, EOS), token] = 20
    conv = build.CONV
    shapes: dict[str, tuple[int, ...]] = {
        "0.mixer.in_proj.weight": (64 + conv + 4, size), "0.mixer.out_proj.weight": (size, 64),
        "0.mixer.conv1d.weight": (conv, 4, 1), "0.mixer.conv1d.bias": (conv,), "0.mixer.norm.weight": (64,),
        "0.mixer.A_log": (4,), "0.mixer.D": (4,), "0.mixer.dt_bias": (4,),
        "1.mixer.q_proj.weight": (64, size), "1.mixer.k_proj.weight": (32, size), "1.mixer.v_proj.weight": (32, size),
        "1.mixer.o_proj.weight": (size, 64),
        "2.mixer.gate.weight": (8, size), "2.mixer.gate.e_score_correction_bias": (8,),
        "2.mixer.switch_mlp.fc1.weight": (8, 64, size), "2.mixer.switch_mlp.fc2.weight": (8, size, 64),
        "2.mixer.shared_experts.up_proj.weight": (64, size), "2.mixer.shared_experts.down_proj.weight": (size, 64),
    }  # fmt: skip
    arrays = {f"backbone.layers.{k}": np.zeros(v) for k, v in shapes.items()}
    arrays |= {f"backbone.layers.{i}.norm.weight": np.ones(size) for i in range(3)}
    arrays |= {"backbone.embeddings.weight": np.eye(size), "backbone.norm_f.weight": np.ones(size)}
    arrays["lm_head.weight"] = head
    return {k: v.astype(np.float32) for k, v in arrays.items()}


class Follower:
    """A drafter that knows the script; right for `right` drafts, then wrong."""

    name, sources, taps, max_draft, context = "dspark", ("dspark",), (), 8, 0

    def __init__(self, follows: Mapping[int, int], right: int = 8):
        self.follows, self.right = follows, right

    def new_state(self) -> None:
        return None

    def copy_state(self, state: Any) -> None:
        return None

    def state_nbytes(self, state: Any) -> int:
        return 0

    def observe(self, state: Any, tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        return [block_of(self._drafts(r), self.name) for r in requests]

    def _drafts(self, request: DraftRequest) -> list[int]:
        token, drafts = request.anchor, []
        for i in range(request.count):
            token = self.follows.get(token, EOS)
            drafts.append(token if i < self.right else 65)
        return drafts
