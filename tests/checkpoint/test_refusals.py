"""Every damaged or mismatched checkpoint ends the command with exit code 2 and one sentence naming the culprit."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import build
import mlx.core as mx
import pytest

from mlx_dspark import load
from mlx_dspark.cli.main import main
from mlx_dspark.errors import DsparkError


def weights(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / "model.safetensors"
    tensors = dict(mx.load(str(path)))
    mx.eval(tensors)
    change(tensors)
    mx.save_safetensors(str(path), tensors)


def truncate(folder: Path, count: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-count])


def append(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"xx")


def header(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    entries = json.loads(raw[8 : 8 + size])
    changed = json.dumps(change(entries) or entries).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + raw[8 + size :])


def shift(entries: dict) -> None:
    name = next(iter(k for k in entries if k != "__metadata__"))
    entries[name]["data_offsets"] = [o + 4 for o in entries[name]["data_offsets"]]


def index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}})
    )


T, D = "target", "drafter"
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda p: (p / T / "config.json").unlink(), "config.json is missing"),
    "config is no json": (lambda p: (p / T / "config.json").write_text("{"), "config.json cannot be read"),
    "config is a list": (lambda p: (p / T / "config.json").write_text("[1]"), "no JSON object"),
    "other family": (lambda p: build.edit_config(p / T, model_type="llama"), "model_type is 'llama'"),
    "pattern contradiction": (lambda p: build.edit_config(p / T, layers_block_type=["mamba"]), "must agree"),
    "unknown layer kind": (lambda p: build.edit_config(p / T, layer_types=["rwkv"]), "layer_types has rwkv"),
    "no pattern": (lambda p: build.edit_config(p / T, drop=("hybrid_override_pattern",)), "layers_block_type is missing"),
    "layer count": (lambda p: build.edit_config(p / T, num_hidden_layers=9), "num_hidden_layers is 9"),
    "missing key": (lambda p: build.edit_config(p / T, drop=("ssm_state_size",)), "ssm_state_size is missing"),
    "key of another type": (lambda p: build.edit_config(p / T, head_dim="x"), "head_dim is 'x'"),
    "foreign quantisation": (lambda p: build.edit_config(p / T, quantization_config={"quant_method": "gptq"}), "gptq"),
    "no weights": (lambda p: (p / T / "model.safetensors").unlink(), "no model.safetensors"),
    "missing tensor": (lambda p: weights(p / T, lambda w: w.pop("lm_head.weight")), "no tensor lm_head.weight"),
    "surplus tensor": (lambda p: weights(p / T, lambda w: w.update(extra=mx.zeros(3))), "tensor extra"),
    "misshapen tensor": (
        lambda p: weights(p / T, lambda w: w.update({"lm_head.weight": mx.zeros((5, 5))})),
        r"lm_head.weight has shape \[5, 5\]",
    ),
    "integer tensor": (
        lambda p: weights(p / T, lambda w: w.update({"backbone.norm_f.weight": mx.zeros(64, mx.int32)})),
        "norm_f.weight is I32",
    ),
    "truncated": (lambda p: truncate(p / T, 100), "truncated by 100 bytes"),
    "trailing bytes": (lambda p: append(p / T), "2 bytes after"),
    "empty file": (lambda p: (p / T / "model.safetensors").write_bytes(b""), "too few"),
    "header too long": (
        lambda p: (p / T / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"x" * 80),
        "header claims",
    ),
    "header no json": (
        lambda p: (p / T / "model.safetensors").write_bytes(struct.pack("<Q", 40) + b"x" * 80),
        "not valid JSON",
    ),
    "overlap": (lambda p: header(p / T, shift), "overlaps|gap|spans"),
    "lfs pointer": (
        lambda p: (p / T / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid"),
        "Git LFS pointer",
    ),
    "missing shard": (lambda p: index(p / T), "model-00001-of-00002.safetensors is missing"),
    "no tokenizer": (lambda p: (p / T / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "damaged tokenizer": (lambda p: (p / T / "tokenizer.json").write_text("{}"), "tokenizer.json is no valid"),
    "damaged template": (lambda p: (p / T / "chat_template.jinja").write_text("{% if %}"), "no valid jinja"),
    "swapped": (lambda p: (p / T).rename(p / "x") and (p / D).rename(p / T) and (p / "x").rename(p / D), "is a drafter"),
    "target as drafter": (lambda p: shutil.rmtree(p / D) or shutil.copytree(p / T, p / D), "is a target, not a drafter"),
    "other hidden size": (lambda p: build.edit_config(p / D, hidden_size=32), "hidden_size is 32"),
    "other vocabulary": (lambda p: build.edit_config(p / D, vocab_size=299), "vocab_size is 299"),
    "tap past the end": (
        lambda p: build.edit_config(p / D, target_layer_ids=[0, 2, 7], dflash_config={}, eagle_aux_hidden_state_layer_ids=None,
                                    attention_sink_bias=True),
        "layers 0-6",
    ),
    "negative tap": (
        lambda p: build.edit_config(p / D, target_layer_ids=[-1, 2, 4], dflash_config={}, attention_sink_bias=True),
        "target_layer_ids",
    ),
    "taps missing": (lambda p: build.edit_config(p / D, drop=("target_layer_ids",), dflash_config={}), "target_layer_ids"),
    "tap count": (
        lambda p: build.edit_config(p / D, target_layer_ids=[0, 2], dflash_config={}, num_aux_layers=None,
                                    eagle_aux_hidden_state_layer_ids=None),
        "fc.weight has shape",
    ),
    "sample_from_anchor": (
        lambda p: build.edit_config(p / D, sample_from_anchor=True, dflash_config={}), "sample_from_anchor is true"),
    "sample_from_anchor contradiction": (lambda p: build.edit_config(p / D, sample_from_anchor=True), "must agree"),
    "draft vocabulary": (lambda p: build.edit_config(p / D, draft_vocab_size=100), "draft_vocab_size is 100"),
    "other markov head": (lambda p: build.edit_config(p / D, markov_head_type="rnn"), "markov_head_type"),
    "scaled rope": (lambda p: build.edit_config(p / D, rope_parameters={"rope_type": "yarn"}), "yarn"),
    "mask id": (lambda p: build.edit_config(p / D, mask_token_id=999, pard_token=999, dflash_config={}), "mask_token_id"),
    "other drafter": (lambda p: build.edit_config(p / D, architectures=["DFlash"]), "architectures"),
    "drafter tensor missing": (
        lambda p: weights(p / D, lambda w: w.pop("layers.1.self_attn.attention_sink_bias")), "attention_sink_bias"),
    "drafter truncated": (lambda p: truncate(p / D, 10), "truncated by 10 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_exit_code_2_and_one_sentence(checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, expected = CASES[name]
    damage(checkpoint)
    with pytest.raises(SystemExit) as ended:
        main(["generate", "--model", str(checkpoint / T), "--drafter", str(checkpoint / D), "--prompt", "x"])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    assert len(shown.err.strip().splitlines()) == 1
    with pytest.raises(DsparkError, match=expected):
        load(str(checkpoint / T), str(checkpoint / D))


def test_what_is_tolerated(checkpoint: Path) -> None:
    """mtp tensors, a missing confidence key, every spelling of the layers, foreign code, stacked or single experts."""
    names = ["mamba", "full_attention", "moe", "linear_attention", "mlp", "moe", "attention"]
    build.edit_config(checkpoint / T, drop=("hybrid_override_pattern",), layers_block_type=names,
                      time_step_limit=[0.0, {"__float__": "Infinity"}], auto_map={"AutoModel": "evil.Model"})  # fmt: skip
    marker = checkpoint / "ran"
    (checkpoint / T / "evil.py").write_text(f"open({str(marker)!r}, 'w')")

    def unstack(w: dict) -> None:
        w["mtp.layers.0.x.weight"] = mx.zeros(4)
        for name in [n for n in w if "switch_mlp" in n]:
            stem, part = name.split("switch_mlp.")
            proj = {"fc1.weight": "up_proj", "fc2.weight": "down_proj"}[part]
            stacked = w.pop(name)
            for e in range(stacked.shape[0]):
                w[f"{stem}experts.{e}.{proj}.weight"] = stacked[e]
        for name in [n for n in w if "conv1d.weight" in n]:
            w[name] = w[name].swapaxes(1, 2)

    before = load(str(checkpoint / T), mode="baseline").generate("hi", max_tokens=8, chat_template=False).tokens
    weights(checkpoint / T, unstack)
    pair = load(str(checkpoint / T), str(checkpoint / D))
    assert pair.generate("hi", max_tokens=8, chat_template=False).tokens == before
    assert not marker.exists()


def test_bf16_experts_run_on_a_cpu_and_eos_is_a_union(tmp_path: Path) -> None:
    build.write_target(tmp_path / T, dtype=mx.bfloat16, eos_token_id=259)
    (tmp_path / T / "generation_config.json").write_text(json.dumps({"eos_token_id": [7]}))
    pair = load(str(tmp_path / T))
    assert pair.eos_ids == {259, 258, 7}
    assert pair.generate("hi", max_tokens=8, chat_template=False).completion_tokens <= 8


def test_sampling_defaults_come_from_the_checkpoint(tmp_path: Path) -> None:
    build.write_target(tmp_path / T)
    path = tmp_path / T / "generation_config.json"
    path.write_text(json.dumps({"temperature": 1.0}))
    pair = load(str(tmp_path / T))
    texts = {tuple(pair.generate("hi", max_tokens=8, seed=s, chat_template=False).tokens) for s in range(5)}
    assert len(texts) >= 2
    greedy = {
        tuple(pair.generate("hi", max_tokens=8, seed=s, temperature=0, chat_template=False).tokens) for s in range(3)
    }
    assert len(greedy) == 1
    path.write_text(json.dumps({"temperature": 1.0, "do_sample": False}))
    pair = load(str(tmp_path / T))
    assert {tuple(pair.generate("hi", max_tokens=8, seed=s, chat_template=False).tokens) for s in range(3)} == greedy
