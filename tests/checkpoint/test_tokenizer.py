"""Prompts equal transformers' own, byte for byte; tokens stream as the whole decodes; damage is named."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import build
import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

import mlx_dspark
from mlx_dspark.checkpoint.tokenizer import Tokenizer, TokenStream
from mlx_dspark.errors import ConfigError, PromptError, TokenizerError

DEMO = Path(mlx_dspark.__file__).parent / "demo" / "target-4bit"
USER = {"role": "user", "content": "How many jars? Ünïcode \u00a0 🫙\r\n  "}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "<think>\nsix jars\n</think>\n\nSix."},
    {"role": "user", "content": "And now?"},
]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one turn": ([USER], {}),
    "thinking": ([USER], {"enable_thinking": True}),
    "no thinking": ([USER], {"enable_thinking": False}),
    "system, history with reasoning": (HISTORY, {"enable_thinking": False}),
    "reasoning in its own field": (
        [USER, {"role": "assistant", "content": "Six.", "reasoning": "hm", "tool_calls": None}, USER],
        {},
    ),
    "list contents": (
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a\n"},
                    {"type": "image", "url": "x"},
                    {"type": "text", "text": "b"},
                ],
            }
        ],
        {},
    ),
    "empty content": ([{"role": "system", "content": ""}, {"role": "assistant", "content": None}, USER], {}),
    "no generation prompt": (HISTORY, {"add_generation_prompt": False}),
    "special tokens in the text": ([{"role": "user", "content": "<|im_end|><think>&<b>'\""}], {"documents": []}),
}
# What templates in the field use: every global, filter, tag and whitespace rule of the environment.
RICH = """{# a comment #}
{%- set ns = namespace(n=0, seen=dict(a=1)) %}
{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ sep_token is defined }}{{ dict.fromkeys(['k'], 2) }}
    {% for m in messages %}
        {% if m.role == 'system' %}{% continue %}{% endif %}
        {% set ns.n = ns.n + 1 %}
{{ m.role }}: {{ m | tojson }} {{ m.content | tojson(indent=2, sort_keys=true) }} {{ m.thinking }}{{ m.reasoning_content }}
        {% generation %}  {{- m.content }}
        {% endgeneration %}
        {% if ns.n > 2 %}{% break %}{% endif %}
    {% endfor %}
{{ ns.n }} {{ tools | tojson }} {{ tools is none }} {{ documents }} {{ strftime_now('%Y') }} {{ flag }}
{%- if add_generation_prompt %}GO{% endif %}

"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(DEMO)


def oracle(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the demo's tokenizer to change."""
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        shutil.copyfile(DEMO / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def theirs() -> Any:
    return oracle(DEMO)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_equal_transformers(tokenizer: Tokenizer, theirs: Any, name: str) -> None:
    messages, switches = CONVERSATIONS[name]
    before = json.dumps(messages)
    wanted = {"add_generation_prompt": True, **switches}
    assert tokenizer.render(messages, **switches) == theirs.apply_chat_template(messages, tokenize=False, **wanted)
    ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **wanted)
    assert tokenizer.chat_ids(messages, **switches) == ids
    assert json.dumps(messages) == before


def test_the_environment_equals_transformers(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(RICH.replace("\n", "\r\n").encode())
    messages = [
        {"role": "system", "content": "skipped"},
        {"role": "user", "content": "<é> & 'q' 🫙"},
        {"role": "assistant", "content": "six", "reasoning": "hm", "tool_calls": None},
        {"role": "assistant", "content": "six", "thinking": "hm", "tool_calls": [{"function": {"arguments": {}}}]},
        {"role": "user", "content": "never reached"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    mine, theirs = Tokenizer.from_folder(folder), oracle(folder)
    for switches in (
        {},
        {"tools": tools, "flag": True, "bos_token": "!"},
        {"documents": [{"title": "a", "text": "b"}]},
    ):
        wanted = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switches)
        assert mine.render(messages, **switches) == wanted
        assert "never reached" not in wanted
    assert mine.template_sha256 == hashlib.sha256((folder / "chat_template.jinja").read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "nothing"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages.append(1) }}", "append"),
        ("{% set ns = namespace(_a=1) %}", "underscore"),
        ("{% set ns = namespace() %}{% set ns._a = 1 %}", "underscore"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ dict.mro() }}", "mro"),
    ],
)
def test_a_template_that_refuses_is_a_prompt_error(folder: Path, template: str, reason: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(PromptError, match=reason) as caught:
        Tokenizer.from_folder(folder).render([USER])
    assert "\n" not in str(caught.value)


def test_messages_that_are_none(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match="no message"):
        tokenizer.render([])
    for messages in (["text"], [3], [{"content": []}, None]):
        with pytest.raises(PromptError, match="refuses these messages"):
            tokenizer.render(messages)  # type: ignore[arg-type]


def test_foreign_objects_reach_no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }} {{ thing }}")
    rendered = Tokenizer.from_folder(folder).render([{"role": "user", "content": DEMO}], thing=("a", 1.5, object()))
    assert rendered == f"<{type(DEMO).__name__}> ['a', 1.5, '<object>']"


def test_where_the_template_is_found(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())

    def rendered(template: object) -> str:
        settings["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return Tokenizer.from_folder(folder).render([USER])

    assert rendered("other").startswith("<|im_start|>user")  # the file comes before its copy
    (folder / "chat_template.jinja").unlink()
    assert rendered("copy") == "copy"
    assert rendered([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]) == "yes"
    for none in (None, [{"name": "tool_use", "template": "no"}]):
        with pytest.raises(TokenizerError, match="no chat template"):
            rendered(none)
    plain = Tokenizer.from_folder(folder)
    assert (plain.has_chat_template, plain.template_sha256) == (False, None)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("tokenizer.json", None, TokenizerError),
        ("tokenizer.json", b"{", TokenizerError),
        ("tokenizer.json", b"\xff\xfe", TokenizerError),
        ("chat_template.jinja", b"{% if %}", TokenizerError),
        ("chat_template.jinja", b"\xff", TokenizerError),
        ("tokenizer_config.json", b"[]", ConfigError),
    ],
)
def test_damage_is_named(folder: Path, name: str, content: bytes | None, error: type[Exception]) -> None:
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(error, match="chat template|" + name.replace(".", r"\.")):
        Tokenizer.from_folder(folder)


def test_ids_and_text(tokenizer: Tokenizer, folder: Path) -> None:
    end = tokenizer.token_id("<|im_end|>")
    assert end is not None
    assert tokenizer.eos_ids == {end}
    assert tokenizer.id_text(end) == "<|im_end|>"
    assert (
        tokenizer.id_text(tokenizer.vocab_size) is tokenizer.id_text(-1) is tokenizer.token_id("no such token") is None
    )
    ids = tokenizer.encode(" two  words<|im_end|>")
    assert ids[-1] == end
    assert tokenizer.decode(ids) == " two  words<|im_end|>"
    assert tokenizer.decode(ids, skip_special=True) == " two  words"
    assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
    with pytest.raises(PromptError, match=r"U\+D800\) at character 1"):
        tokenizer.encode("a\ud800")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]  # special_tokens_map.json still has it, for the template only
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text("{{ eos_token }}")
    bare = Tokenizer.from_folder(folder)
    assert bare.eos_ids == frozenset()
    assert bare.render([USER]) == oracle(folder).apply_chat_template([USER], tokenize=False) == "<|im_end|>"


def test_stored_truncation_and_padding_are_ignored(folder: Path) -> None:
    inner = Inner.from_file(str(folder / "tokenizer.json"))
    inner.enable_truncation(4)
    inner.enable_padding(length=64)
    inner.save(str(folder / "tokenizer.json"))
    assert Tokenizer.from_folder(folder).encode("word " * 20) == Tokenizer.from_folder(DEMO).encode("word " * 20)


def streamed(stream: TokenStream, ids: list[int]) -> list[str]:
    return [stream.push(i) for i in ids]


def byte_ids(folder: Path, data: bytes) -> tuple[Tokenizer, list[int]]:
    """A tokenizer whose tokens are bytes, and the ids of any bytes at all."""
    folder.mkdir(exist_ok=True)
    build.write_tokenizer(folder)
    made, alphabet = Tokenizer.from_folder(folder), _byte_alphabet()
    ids = [made.token_id(alphabet[b]) for b in data]
    assert made.decode([i for i in ids if i is not None]) == data.decode(errors="replace")
    return made, [i for i in ids if i is not None]


def _byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: printable Latin-1 stands for itself, the rest is numbered from 256."""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    return [chr(b) if b in keep else chr(next(rest)) for b in range(256)]


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        ("€a".encode(), ["", "", "€", "a"]),
        ("🫙".encode(), ["", "", "", "🫙"]),
        (b"\xff\xffa", ["\ufffd", "\ufffd", "a"]),  # can never become a character: shown at once
        (b"\xe2a", ["", "\ufffda"]),
        (b"\xe2\xe2\x82\xac", ["", "\ufffd", "", "€"]),  # the first is settled when the second begins
        (b"\xf0\x80b", ["", "\ufffd\ufffd", "b"]),
        ("x\ufffd".encode(), ["x", "", "", "\ufffd"]),  # a real U+FFFD is a character
        (b"x\xf0\x9f", ["x", "", ""]),  # unfinished at the end: dropped
        ("\ud7ff\u0800\U0010ffff".encode(), ["", "", "\ud7ff", "", "", "\u0800", "", "", "", "\U0010ffff"]),
    ],
)
def test_bytes_become_characters_as_soon_as_they_are_certain(tmp_path: Path, data: bytes, pieces: list[str]) -> None:
    made, ids = byte_ids(tmp_path / "t", data)
    assert streamed(made.stream(), ids) == pieces


def test_endless_broken_bytes_neither_silence_nor_slow_the_stream(tmp_path: Path) -> None:
    made, ids = byte_ids(tmp_path / "t", b"\x80" * 2000 + b"fine")
    assert "".join(streamed(made.stream(), ids)) == made.decode(ids) == "\ufffd" * 2000 + "fine"


def sentencepiece(folder: Path) -> Tokenizer:
    """A Llama-like tokenizer: spaces as U+2581, a leading one dropped in decoding, unknown characters as bytes."""
    folder.mkdir(exist_ok=True)
    words = ["<unk>", "\u2581", "\u2581a", "b", "\u2581\u2581", *(f"<0x{b:02X}>" for b in range(256))]
    inner = Inner(
        models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


def test_leading_spaces_and_byte_fallback(tmp_path: Path) -> None:
    made = sentencepiece(tmp_path / "t")
    one = {text: made.token_id(text) for text in ("\u2581", "\u2581a", "b", "\u2581\u2581")}

    def spelled(*parts: str | bytes) -> list[int]:
        ids: list[int | None] = []
        for part in parts:
            ids += [one[part]] if isinstance(part, str) else [made.token_id(f"<0x{b:02X}>") for b in part]
        return [i for i in ids if i is not None]

    for parts in (
        ("\u2581a", "\u2581a", "b", "\u2581a"),
        ("\u2581", "\u2581a", "\u2581\u2581", "b"),
        ("\u2581\u2581", "b", "€🫙".encode(), "\u2581a"),
        ("\u2581", "é".encode(), "é".encode(), "\u2581", "\u2581"),
        (b"\xff\xff", "b", "🫙".encode()),
        ("\ufffdé".encode(), "b"),
    ):
        ids = spelled(*parts)
        assert "".join(streamed(made.stream(), ids)) == made.decode(ids), parts
    # Decoding the whole again would turn the shown euro into broken bytes; what is shown stays, nothing is withheld.
    assert streamed(made.stream(), spelled("€".encode(), b"\xff", "b")) == ["", "", "€", "\ufffd", "b"]


def test_other_decoders(tmp_path: Path) -> None:
    words = ["<unk>", "\u2581one", "\u2581two", "x"]
    for decoder in (decoders.Metaspace(), decoders.WordPiece("##", cleanup=False), decoders.BPEDecoder("x"), None):
        inner = Inner(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        if decoder is not None:
            inner.decoder = decoder
        inner.save(str(tmp_path / "tokenizer.json"))
        made = Tokenizer.from_folder(tmp_path)
        ids = [1, 2, 2, 0, 1, 2]
        assert "".join(streamed(made.stream(), ids)) == made.decode(ids), decoder


def test_ids_outside_the_vocabulary_cost_nothing(tokenizer: Tokenizer) -> None:
    stream, beyond = tokenizer.stream(), tokenizer.vocab_size + 1
    ids = [*tokenizer.encode("a"), *[beyond] * 500, *tokenizer.encode(" b")]
    assert "".join(streamed(stream, ids)) == "a b"
    assert "".join(streamed(tokenizer.stream(), [beyond] * 500 + tokenizer.encode("b"))) == "b"
