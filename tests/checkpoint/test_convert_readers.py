"""Converted folders in the readers they are made for: this package, with the embedded target, and mlx-lm."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import mlx.core as mx
import nvfp4_source as source
import pytest

from mlx_dspark import Pair, load
from mlx_dspark.checkpoint.convert import ConvertOptions, convert
from mlx_dspark.checkpoint.safetensors import encode_header

PROMPT = "There are 3 tickets in each jar. How many tickets are there in 6 jars?"


def test_the_full_size_source_has_the_published_layout(maker: ModuleType) -> None:
    specs = maker.full_specs()
    size = len(encode_header(specs)) + sum(s.nbytes for s in specs)
    assert (len(specs), size, sum(s.dtype == "U8" for s in specs)) == (118, 1_349_057_504, 20)


def test_the_converted_embedded_drafter_drafts(tmp_path: Path, maker: ModuleType, demo: Pair) -> None:
    """The embedded drafter in NVFP4, converted: the text is the same and most of its drafts still stand."""
    maker.write_small(tmp_path / "src")
    report = convert(ConvertOptions(str(tmp_path / "src"), str(tmp_path / "dst")))
    assert (report.modules, report.copied, report.parameters) == (11, 31, 3_508_440)
    before = demo.generate(PROMPT, max_tokens=40, max_draft=7, temperature=0)
    after = load("demo", str(tmp_path / "dst")).generate(PROMPT, max_tokens=40, max_draft=7, temperature=0)
    assert after.tokens == before.tokens
    assert after.accept_length > 0.8 * before.accept_length > 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlx_lm_loads_a_converted_llama(tmp_path: Path) -> None:
    utils = pytest.importorskip("mlx_lm.utils")
    found: dict[str, source.Tensor] = {}
    for name, rows, width in (
        ("self_attn.q_proj", 32, 32), ("self_attn.k_proj", 32, 32), ("self_attn.v_proj", 32, 32),
        ("self_attn.o_proj", 32, 32), ("mlp.gate_proj", 64, 32), ("mlp.up_proj", 64, 32), ("mlp.down_proj", 32, 64),
    ):  # fmt: skip
        found |= source.module(f"model.layers.0.{name}", rows, width)
    ones = bytes.fromhex("803f") * 32
    for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
        found[f"{name}.weight"] = ("BF16", (32,), ones)
    found["model.embed_tokens.weight"] = ("BF16", (64, 32), ones * 64)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1,
        "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "vocab_size": 64, "tie_word_embeddings": True, "quantization_config": source.quantisation(),
    }  # fmt: skip
    src = source.write(tmp_path / "src", found, config=config, hf=source.hf_quant(exclude_modules=["lm_head"]))
    convert(ConvertOptions(str(src), str(tmp_path / "dst")))
    model, _ = utils.load_model(tmp_path / "dst", strict=True)
    assert mx.isfinite(model(mx.array([[1, 2, 3]])).astype(mx.float32)).all().item()
