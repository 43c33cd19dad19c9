"""A checkpoint's tokenizer and chat template: tokenizer.json through `tokenizers`, the template through jinja2.

Knows text, ids and messages; must not know the model, the device or transformers (never imported). Prompts equal
transformers' `apply_chat_template` of the same folder: see `Tokenizer.render`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.utils
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlx_dspark.checkpoint.config import read_json
from mlx_dspark.errors import PromptError, TokenizerError

SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")  # one field under three names, the first the standard
BROKEN = "\ufffd"  # what decoders show for bytes that are no character (yet)
PATIENCE = 64  # tokens without any text at a sequence's start, after which they are forgotten


class TokenStream:
    """Incremental decoding of one sequence, special tokens included.

    `decode` maps ids to text. `lowest` and `highest` are the tokens of the bytes 0x80 and 0xBF where the vocabulary
    has them: appended on trial they tell a character still growing from bytes that never become one (and from a
    real U+FFFD), so that the former waits and the latter is shown at once. A UTF-8 head accepts one of the two.
    Without them a broken tail waits for at most 3 more tokens.

    The pushes concatenate to the whole decode, but for an unfinished last character, which is dropped, and for
    decoders that spoil a whole run of bytes when one is invalid (byte fallback): characters shown stay shown.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], lowest: int | None = None, highest: int | None = None):
        self._decode = decode
        self._endings: tuple[tuple[int, ...], ...] = ()
        if lowest is not None and highest is not None:
            self._endings = tuple((head, *[lowest] * rest) for rest in range(3) for head in (highest, lowest))
        self._context: list[int] = []  # the last tokens that ended at a character border: decoders look back on them
        self._pending: list[int] = []  # tokens since
        self._shown = ""  # of the pending tokens' text

    def push(self, token: int) -> str:
        """The characters this token completes; "" while one is unfinished."""
        self._pending.append(token)
        text, settled = self._text()
        if settled is None:
            piece, self._shown = text.removeprefix(self._shown), ""
            if text:
                self._context, self._pending = self._pending, []
            elif self._context or len(self._pending) >= PATIENCE:
                self._pending = []
            return piece
        piece = settled[len(self._shown) :] if settled.startswith(self._shown) else ""
        self._shown += piece
        return piece

    def _text(self) -> tuple[str, str | None]:
        """The pending tokens' text, and how much of it is settled; None if all of it is."""
        base, before = self._context, self._decode(self._context)
        text = self._decode([*base, *self._pending])
        if not text.startswith(before):  # the pending bytes spoil the run they are in
            base, before, text = [], "", self._decode(self._pending)
        text = text[len(before) :]
        if not text.endswith(BROKEN):
            return text, None
        if not self._endings:
            waits = len(self._pending) < 4
            return text, text.rstrip(BROKEN) if waits else None
        for ending in self._endings:
            grown = self._decode([*base, *self._pending, *ending])[len(before) :]
            if not grown.endswith(BROKEN):
                return text, grown[:-1]
        return text, None


class Tokenizer:
    """`from_folder` reads one; ids and text both ways, and chat messages to prompt ids."""

    def __init__(
        self,
        folder: Path,
        inner: tokenizers.Tokenizer,
        settings: Mapping[str, Any],
        template: str | None,
        special: Mapping[str, Any] | None = None,
    ):
        inner.no_truncation()  # what a tokenizer.json keeps of its training would cut or fill prompts silently
        inner.no_padding()
        self.folder = folder
        self._inner = inner
        self._template_text = template
        self._template = _compile(folder, template) if template is not None else None
        self._eos = _token_text(settings.get("eos_token"))
        texts = {key: _token_text(settings.get(key)) or _token_text((special or {}).get(key)) for key in SPECIAL_KEYS}
        self._special = {key: text for key, text in texts.items() if text is not None}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json and the template of a checkpoint folder.

        Raises TokenizerError, naming the file, if one is missing or damaged (ConfigError for tokenizer_config.json).
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path} is missing; complete the checkpoint folder")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises a bare Exception
            raise TokenizerError(f"{path} is no valid tokenizer ({_line(error)}); download it again") from None
        settings, special = (
            read_json(folder / name) if (folder / name).is_file() else {}
            for name in ("tokenizer_config.json", "special_tokens_map.json")
        )
        return cls(folder, inner, settings, _find_template(folder, settings), special)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._inner.get_vocab_size(with_added_tokens=True))

    @property
    def eos_ids(self) -> frozenset[int]:
        """The id of tokenizer_config.json's eos_token; empty if it names none. The model's config may know more."""
        found = None if self._eos is None else self.token_id(self._eos)
        return frozenset() if found is None else frozenset({found})

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def template_sha256(self) -> str | None:
        """Hex digest of the template's UTF-8 bytes as they are on disk; None without a template."""
        text = self._template_text
        return None if text is None else hashlib.sha256(text.encode()).hexdigest()

    def token_id(self, text: str) -> int | None:
        """The id of a token spelled as in the vocabulary; None if there is none."""
        found = self._inner.token_to_id(text)
        return None if found is None else int(found)

    def id_text(self, token: int) -> str | None:
        """A token as the vocabulary spells it (spaces and bytes encoded); None outside the vocabulary."""
        found = self._inner.id_to_token(token) if token >= 0 else None
        return None if found is None else str(found)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of text; special tokens written out in it are recognised. Raises PromptError on a lone surrogate."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
                "which no tokenizer can encode; remove it"
            ) from None
        return [int(i) for i in self._inner.encode(text, add_special_tokens=add_special_tokens).ids]

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of ids, special tokens visible unless skipped; ids outside the vocabulary add nothing."""
        return str(self._inner.decode(list(ids), skip_special_tokens=skip_special))

    def stream(self) -> TokenStream:
        """A fresh incremental detokeniser."""
        for low, high in (("\u0122", "\u00bf"), ("<0x80>", "<0xBF>")):  # the bytes 0x80 and 0xBF, byte level, fallback
            ids = self.token_id(low), self.token_id(high)
            if all(i is not None and self.decode([i]) == BROKEN for i in ids):
                return TokenStream(self.decode, *ids)
        return TokenStream(self.decode)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> str:
        """The prompt text of chat messages through the checkpoint's own template.

        `template_kwargs` go to the template (enable_thinking, tools, ...) and win over special tokens. As in
        transformers 5: keys that are None are dropped from messages, and reasoning passed under an older name is
        found under `reasoning_content` too. Raises TokenizerError without a template, PromptError if it refuses
        or there is no message.
        """
        if self._template is None:
            raise TokenizerError(
                f"{self.folder} has no chat template (chat_template.jinja); give a plain text with --no-chat-template"
            )
        if not messages:
            raise PromptError("the chat has no message; give at least one")
        scope = {"tools": None, "documents": None, **self._special, **template_kwargs}
        try:
            chat = [_message(m) for m in messages]
            return self._template.render(messages=chat, add_generation_prompt=add_generation_prompt, **_plain(scope))
        except Exception as error:  # the template is a program: it may raise anything
            raise PromptError(
                f"the chat template of {self.folder} refuses these messages ({_line(error)}); "
                "change their roles, order or contents"
            ) from None

    def chat_ids(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **template_kwargs: Any
    ) -> list[int]:
        """Ids of `render(...)`; the template writes its special tokens itself, so none are added."""
        return self.encode(self.render(messages, add_generation_prompt=add_generation_prompt, **template_kwargs))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _find_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path} cannot be read as UTF-8 text ({error}); download it again") from None
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(t.get("name")): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _plain(value: Any) -> Any:
    """A copy in JSON's types: a template is foreign code and gets no object with methods of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return f"<{type(value).__name__}>"


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TypeError(f"a message is a {type(message).__name__}, not an object with role and content")
    plain = {key: _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((plain[key] for key in REASONING_KEYS if key in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}..{% endgeneration %}` marks training spans; when rendering a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller: Any) -> str:
        return str(caller())


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` without names that begin with an underscore, as transformers has it."""

    def __init__(*args: Any, **values: Any) -> None:
        attributes = dict(*args[1:], **values)
        for name in attributes:
            _public(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _public(name)
        super().__setitem__(name, value)


def _public(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace keeps no name that begins with an underscore: {name!r}")


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and nothing else of the type."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _compile(folder: Path, text: str) -> jinja2.Template:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = _tojson
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace)
    try:
        return env.from_string(text)
    except (jinja2.TemplateError, RecursionError) as error:
        raise TokenizerError(
            f"{folder}: the chat template is no valid jinja ({_line(error)}); download it again"
        ) from None
