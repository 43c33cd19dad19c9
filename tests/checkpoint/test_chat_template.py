"""Eight conversations in the family's dialect: our prompts equal the golden texts and transformers' own rendering.

The golden texts are transformers' renderings, read through by a person: golden/NAME.txt, ending with the prompt's end.
Write them anew with GOLDEN=1 in the environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dialect
import pytest

from mlx_dspark.checkpoint.tokenizer import Tokenizer

HERE = Path(__file__).parent
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city\n",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "A <name>"},
                    "days": {"type": ["integer", "null"], "minimum": 1},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}}},
]
ASK = {"role": "user", "content": "Wie ist das Wetter in Köln? 🌧\n\n  "}
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "The user wants weather.\n",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2}}},
        {"id": "c2", "type": "function", "function": {"name": "noop", "arguments": {}}},
    ],
}
RESULTS = [
    {"role": "tool", "tool_call_id": "c1", "content": '{"rain": true}'},
    {"role": "tool", "tool_call_id": "c2", "content": ""},
]
ANSWER = {"role": "assistant", "content": "Rain & wind.", "reasoning_content": "So it rains.\n"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "thinking": ([ASK], {"enable_thinking": True}),
    "no_thinking": ([{"role": "system", "content": "Be brief."}, ASK], {"enable_thinking": False}),
    "tools_offered": ([{"role": "system", "content": "Use tools."}, ASK], {"tools": TOOLS}),
    "tool_results": ([ASK, CALL, *RESULTS], {"tools": TOOLS}),
    "reasoning_left_out_of_earlier_turns": ([ASK, ANSWER, {"role": "user", "content": "And tomorrow?"}], {}),
    "reasoning_kept_on_request": (
        [ASK, ANSWER, {"role": "user", "content": "And tomorrow?"}],
        {"truncate_history_thinking": False},
    ),
    "reasoning_inside_the_content": (
        [ASK, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nRain."}, ASK, ANSWER],
        {"add_generation_prompt": False},
    ),
    "parts_and_a_call_with_text": (
        [
            {"role": "user", "content": [{"type": "text", "text": "a\n"}, {"type": "text", "text": "b <think>"}]},
            {**CALL, "content": "Let me look.", "reasoning_content": ""},
            RESULTS[0],
            ANSWER,
            {"role": "user", "content": "Thanks"},
        ],
        {"tools": TOOLS, "enable_thinking": False},
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded pair's tokenizer with the dialect's template."""
    return dialect.write(tmp_path_factory.mktemp("dialect"))


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_are_the_golden_ones(folder: Path, name: str) -> None:
    messages, switches = CONVERSATIONS[name]
    golden = (HERE / "golden" / f"{name}.txt").read_bytes().decode()
    assert Tokenizer.from_folder(folder).render(messages, **switches) == golden


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_golden_ones_are_transformers_own(folder: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(str(folder))
    messages, switches = CONVERSATIONS[name]
    text = theirs.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **switches})
    if os.environ.get("GOLDEN"):
        (HERE / "golden" / f"{name}.txt").write_bytes(text.encode())
    assert (HERE / "golden" / f"{name}.txt").read_bytes().decode() == text
    ids = theirs.apply_chat_template(
        messages, tokenize=True, return_dict=False, **{"add_generation_prompt": True, **switches}
    )
    assert Tokenizer.from_folder(folder).chat_ids(messages, **switches) == ids
