"""A checkpoint's tokenizer and chat template: tokenizer.json through `tokenizers`, the template through jinja2.

The template runs byte for byte in an environment equal to transformers'; transformers itself is not imported.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers.decoders import DecodeStream

from mlx_dspark.checkpoint.config import read_json
from mlx_dspark.errors import PromptError, TokenizerError

SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LONGEST_CHARACTER = 8  # tokens; a byte run longer than this is no character and is given up


class TokenStream:
    """Incremental decoding of one sequence, special tokens included."""

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._waiting = 0

    def push(self, token: int) -> str:
        """The characters this token completes; "" while one is unfinished."""
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception:  # tokenizers raises a bare Exception when a byte run turns out to be invalid
            text = None
            self._waiting = LONGEST_CHARACTER
        self._waiting = 0 if text is not None else self._waiting + 1
        if self._waiting >= LONGEST_CHARACTER:
            self._stream, self._waiting = DecodeStream(skip_special_tokens=False), 0
        return text or ""


class Tokenizer:
    """`from_folder` reads one; ids and text both ways, and chat messages to prompt ids."""

    def __init__(self, folder: Path, inner: tokenizers.Tokenizer, settings: Mapping[str, Any], template: str | None):
        self.folder = folder
        self._inner = inner
        self._template_text = template
        self._template = _compile(folder, template) if template is not None else None
        self._special = {k: t for k in SPECIAL_KEYS if (t := _token_text(settings.get(k))) is not None}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing; complete the checkpoint folder")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises a bare Exception
            raise TokenizerError(f"{path} is no valid tokenizer ({error}); download it again") from None
        settings_path = folder / "tokenizer_config.json"
        settings = read_json(settings_path) if settings_path.is_file() else {}
        return cls(folder, inner, settings, _find_template(folder, settings))

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @property
    def eos_ids(self) -> frozenset[int]:
        found = self.token_id(self._special.get("eos_token", ""))
        return frozenset() if found is None else frozenset({found})

    @property
    def template_sha256(self) -> str | None:
        text = self._template_text
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def token_id(self, text: str) -> int | None:
        found = self._inner.token_to_id(text)
        return None if found is None else int(found)

    def encode(self, text: str) -> list[int]:
        """Ids of text; special tokens written out in it are recognised, none are added."""
        return [int(i) for i in self._inner.encode(text, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=skip_special))

    def stream(self) -> TokenStream:
        return TokenStream(self._inner)

    def render(self, messages: Sequence[Mapping[str, Any]], **switches: Any) -> str:
        """The prompt text of chat messages; `switches` go to the template (enable_thinking, tools, ...)."""
        if self._template is None:
            raise TokenizerError(
                f"{self.folder} has no chat template (chat_template.jinja); give a plain text with --no-chat-template"
            )
        scope = {"add_generation_prompt": True, "tools": None, "documents": None, **self._special, **switches}
        try:
            return self._template.render(messages=[dict(m) for m in messages], **scope)
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise PromptError(f"the chat template of {self.folder} refuses these messages: {error}") from None

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **switches: Any) -> list[int]:
        return self.encode(self.render(messages, **switches))


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _find_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(t.get("name")): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}..{% endgeneration %}` marks training spans; when rendering a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller: Any) -> str:
        return str(caller())


def _compile(folder: Path, text: str) -> jinja2.Template:
    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: datetime.datetime.now().strftime(fmt)
    try:
        return env.from_string(text)
    except jinja2.TemplateError as error:
        raise TokenizerError(f"{folder}: the chat template is no valid jinja ({error}); download it again") from None
