"""Every bad source: exit code 2, one sentence that names the tensor or file, and nothing written."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nvfp4_source as source
import pytest

from mlx_dspark.checkpoint.convert import ConvertOptions, convert
from mlx_dspark.errors import DsparkError

Tensors = dict[str, source.Tensor]


def swap(name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None, data: bytes | None = None):
    """A damage: some of a tensor's parts replaced."""

    def change(found: Tensors) -> None:
        old = found[name]
        found[name] = (dtype or old[0], old[1] if shape is None else shape, old[2] if data is None else data)

    return change


def drop(*names: str) -> Callable[[Tensors], None]:
    return lambda found: [found.pop(name) for name in names] and None


def add(**new: source.Tensor) -> Callable[[Tensors], None]:
    return lambda found: found.update({name.replace("__", "."): value for name, value in new.items()})


def scale_2(value: float) -> Callable[[Tensors], None]:
    return swap("fc.weight_scale_2", data=np.float32(value).tobytes())


def poke(name: str, position: int, code: int) -> Callable[[Tensors], None]:
    def change(found: Tensors) -> None:
        raw = bytearray(found[name][2])
        raw[position] = code
        found[name] = (*found[name][:2], bytes(raw))

    return change


F32, ROWS = np.float32(1).tobytes(), bytes(24 * 6)
TENSORS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "no scales": (drop("fc.weight_scale"), r"fc has no weight_scale \(present: weight, weight_scale_2\)"),
    "no tensor scale": (drop("fc.weight_scale_2"), r"fc has no weight_scale_2 \(present: weight, weight_scale\)"),
    "orphan scales": (drop("fc.weight"), "fc has no weight "),
    "scales beside bf16": (swap("fc.weight", "BF16", (24, 24)), "its weight is BF16"),
    "scale shape": (swap("fc.weight_scale", shape=(6, 24)), r"weight_scale must be \[24, 96/16\].*it is \[6, 24\]"),
    "scale rank": (swap("fc.weight_scale", shape=(144,)), r"it is \[144\]"),
    "padded scales": (swap("fc.weight_scale", shape=(128, 8), data=bytes(1024)), r"it is \[128, 8\].*tiled"),
    "in-dim 24": (
        lambda f: (swap("fc.weight", shape=(24, 12), data=bytes(288))(f),
                   swap("fc.weight_scale", shape=(24, 1), data=bytes(24))(f)),
        r"\[24, 24/16\]"),
    "no rows": (
        lambda f: (swap("fc.weight", shape=(0, 48), data=b"")(f), swap("fc.weight_scale", shape=(0, 6), data=b"")(f)),
        "at least one row"),
    "mxfp4 u8": (swap("fc.weight_scale", "U8"), "fc looks like MXFP4"),
    "mxfp4 e8m0": (swap("fc.weight_scale", "F8_E8M0", (24, 3), bytes(72)), "fc looks like MXFP4"),
    "mxfp4 alone": (
        lambda f: (drop("fc.weight_scale_2")(f), swap("fc.weight_scale", "U8", (24, 3), bytes(72))(f)), "MXFP4"),
    "scale f32": (swap("fc.weight_scale", "F32", (24, 6), bytes(576)), "F32 block scales"),
    "scale bf16": (swap("fc.weight_scale", "BF16", (24, 6), bytes(288)), "BF16 block scales"),
    "nan scale": (poke("fc.weight_scale", 13, 0x7F), "1 NaN block scales, the first at row 2 block 1"),
    "negative nan scale": (poke("fc.weight_scale", 143, 0xFF), "1 NaN block scales, the first at row 23 block 5"),
    "scale_2 nan": (scale_2(np.nan), "weight_scale_2 = nan, which is not a positive finite"),
    "scale_2 inf": (scale_2(np.inf), "weight_scale_2 = inf"),
    "scale_2 zero": (scale_2(0), "weight_scale_2 = 0.0"),
    "scale_2 negative": (scale_2(-1), r"weight_scale_2 = -1\.0"),
    "scale_2 vector": (swap("fc.weight_scale_2", shape=(2,), data=bytes(8)), r"F32 \[2\], but it must be one F32"),
    "scale_2 bf16": (swap("fc.weight_scale_2", "BF16", data=b"aa"), "must be one F32"),
    "scale_2 reciprocal": (scale_2(1966.08), "looks like compressed-tensors' reciprocal"),
    "overflow": (scale_2(2e35), "overflows bf16"),
    "fp8": (swap("fc.weight", "F8_E4M3"), "fc is FP8"),
    "fp8 e5m2": (swap("fc.weight", "F8_E5M2"), "fc is FP8"),
    "int8": (swap("fc.weight", "I8"), "its weight is I8"),
    "int4 packed": (add(x__weight_packed=("I32", (2, 2), bytes(16))), "x has scales, but its weight is I32"),
    "fp8 blocks": (add(x__weight_scale_inv=("F32", (1,), F32)), r"x\.weight_scale_inv belongs"),
    "stacked experts": (
        lambda f: (swap("fc.weight", shape=(2, 12, 48))(f), swap("fc.weight_scale", shape=(2, 12, 6))(f)),
        "only matrices"),
    "stacked names": (add(**{"e__gate_up_proj_weight_scale": ("F8_E4M3", (2, 2, 2), bytes(8))}), "packaging"),
    "pre_quant_scale": (add(fc__pre_quant_scale=("F32", (1,), F32)), r"fc\.pre_quant_scale changes the maths"),
    "svdquant": (add(fc__svdquant_lora_a=("F32", (1,), F32)), "changes the maths"),
    "zero point": (add(fc__weight_zero_point=("F32", (1,), F32)), "weight_zero_point"),
    "both names": (add(fc__weight_packed=("U8", (24, 48), bytes(1152))), "both weight and weight_packed"),
    "both scales": (add(fc__weight_global_scale=("F32", (1,), F32)), "contradict each other"),
    "nothing quantised": (
        drop(*(f"{m}.weight{p}" for m in ("fc", "layers.0.mlp.up_proj") for p in ("", "_scale", "_scale_2"))),
        "holds no NVFP4 tensors"),
    "group 32 against 16": (
        swap("fc.weight_scale", shape=(24, 3), data=bytes(72)), "group_size 16, but the scales of fc .* per 32"),
    "name taken": (add(fc__scales=("U8", (1,), b"a")), r"would both be written as fc\.scales"),
}  # fmt: skip


def quantised(**changes: Any) -> dict[str, Any]:
    return {**source.CONFIG, "quantization_config": {**source.quantisation(), **changes}}


def compressed(**changes: Any) -> dict[str, Any]:
    return {**source.CONFIG, "quantization_config": {**source.quantisation("compressed"), **changes}}


MIXED = {"fc": {"quant_algo": "FP8"}}
METADATA: dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None, str]] = {
    "fp8": (quantised(quant_algo="FP8"), None, "quant_algo 'FP8' is not supported"),
    "mxfp4": (quantised(quant_algo="mxfp4"), None, "quant_algo 'mxfp4'"),
    "awq": (None, source.hf_quant(quant_algo="NVFP4_AWQ"), "hf_quant_config.json: quant_algo 'NVFP4_AWQ'"),
    "w4a8": (None, source.hf_quant(quant_algo="W4A8_NVFP4_FP8"), "W4A8_NVFP4_FP8"),
    "mixed": (None, source.hf_quant(quant_algo="MIXED_PRECISION", quantized_layers=MIXED), "holds fc as 'FP8'"),
    "mixed without layers": (None, source.hf_quant(quant_algo="MIXED_PRECISION"), "without quantized_layers"),
    "gptq": (quantised(quant_method="gptq"), None, "quant_method 'gptq'"),
    "in text_config": (
        {**source.CONFIG, "text_config": {"quantization_config": {"quant_method": "awq"}}}, None,
        r"text_config\.quantization_config\.quant_method 'awq'"),
    "group in hf": (
        {**source.CONFIG}, source.hf_quant(32),
        "group_size 32, but the scales of fc have one block per 16"),
    "groups that differ": (None, source.hf_quant(32), "contradict each other, with group_size 16 and 32"),
    "group everywhere": (quantised(config_groups={}, group_size=32), source.hf_quant(32), "group_size 32, but"),
    "group of a layer": (
        {**source.CONFIG},
        source.hf_quant(16, quantized_layers={"fc": {"quant_algo": "NVFP4", "group_size": 32}}), "group_size 32, but"),
    "group is text": (quantised(group_size="16"), None, "group_size is '16'"),
    "excluded": (None, source.hf_quant(exclude_modules=["layers.0.mlp*"]), r"excludes 'layers\.0\.mlp\*'"),
    "excluded exactly": (quantised(ignore=["fc"]), None, "excludes 'fc'"),
    "excludes no list": (quantised(ignore="fc"), None, "ignore must be a list"),
    "already mlx": ({**source.CONFIG, "quantization": {"group_size": 64, "bits": 4}}, {}, "MLX's own form already"),
    "entry no object": ({**source.CONFIG, "quantization_config": "x"}, {}, "must be an object"),
    "other compressed": (compressed(format="pack-quantized"), {}, "format 'pack-quantized'"),
    "other group format": (
        compressed(config_groups={"g": {"format": "float-quantized"}}), {}, "format 'float-quantized'"),
    "rotated": (compressed(transform_config={"config_groups": {"u": 1}}), {}, "transform_config is not empty"),
    "sparse": (compressed(sparsity_config={"format": "sparse-24-bitmask"}), {}, "sparsity_config is not empty"),
    "eight bits": (
        compressed(config_groups={"g": {"weights": {"num_bits": 8, "type": "float"}}}), {}, "num_bits 8"),
}  # fmt: skip


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        entries = json.loads(raw[8 : 8 + size])
        new = change(entries)
        text = new if isinstance(new, bytes) else json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])

    return damage


def content(new: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(new(path.read_bytes()))

    return damage


def shards(total: int | None = None, lose: str = "", move: str = "") -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        found = source.tensors()
        names = list(found)
        source.write_shards(folder, found, [names[:4], names[4:]], total)
        if lose:
            (folder / lose).unlink()
        if move:
            path = folder / "model.safetensors.index.json"
            index = json.loads(path.read_text())
            index["weight_map"][move] = "model-00002-of-00002.safetensors"
            path.write_text(json.dumps(index))

    return damage


def twice(folder: Path) -> None:
    source.write_tensors(folder / "model-extra.safetensors", {"norm.weight": ("BF16", (1,), b"ab")})


def unindexed(folder: Path) -> None:
    shards(lose="model-00002-of-00002.safetensors")(folder)
    (folder / "model.safetensors.index.json").unlink()


def huge(entries: dict[str, Any]) -> None:
    entries["norm.weight"]["shape"] = [2**40, 2**40]


def reorder(name: str, by: int) -> Callable[[dict[str, Any]], None]:
    return lambda e: e[name].update(data_offsets=[o + by for o in e[name]["data_offsets"]])


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (content(lambda b: b""), "model.safetensors: 0 bytes are too few"),
    "five bytes": (content(lambda b: b[:5]), "5 bytes are too few"),
    "header too long": (content(lambda b: struct.pack("<Q", len(b)) + b[8:]), r"claims \d+ bytes, the file has"),
    "header over the limit": (content(lambda b: struct.pack("<Q", 2**63) + b[8:]), "claims 9223372036854775808"),
    "header no json": (header(lambda e: b"{nope"), "not valid JSON"),
    "header a list": (header(lambda e: b"[]"), "not a JSON object"),
    "no dtype": (header(lambda e: e["norm.weight"].pop("dtype")), r"norm\.weight has an invalid header entry"),
    "negative offset": (
        header(lambda e: e["norm.weight"].update(data_offsets=[-1, 3])),
        r"norm\.weight .*data_offsets"),
    "shape of text": (header(lambda e: e["norm.weight"].update(shape=["3"])), r"norm\.weight .*shape"),
    "shape of true": (header(lambda e: e["norm.weight"].update(shape=[True])), r"norm\.weight .*shape"),
    "duplicate": (
        header(lambda e: json.dumps(e).encode()[:-1] + b', "norm.weight": {}}'),
        "duplicate key 'norm.weight'"),
    "size": (header(huge), r"norm\.weight spans \d+ bytes"),
    "overlap": (header(reorder("norm.weight", -2)), r"norm\.weight overlaps"),
    "gap": (header(reorder("norm.weight", 2)), r"norm\.weight leaves a gap of 2 bytes"),
    "truncated": (content(lambda b: b[:-7]), "truncated by 7 bytes"),
    "trailing": (content(lambda b: b + b"x"), "1 bytes after its last tensor"),
    "f4 tag": (header(lambda e: e["norm.weight"].update(dtype="F4")), r"norm\.weight has dtype F4"),
    "lfs pointer": (
        content(lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "LFS pointer"),
    "web page": (content(lambda b: b"<!DOCTYPE html><html></html>"), "web page"),
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "config no json": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    "hf config no json": (
        lambda f: (f / "hf_quant_config.json").write_text("["),
        "hf_quant_config.json cannot be read"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "weights are a folder": (
        lambda f: (f / "model.safetensors").unlink() or (f / "model.safetensors").mkdir(),
        "model.safetensors cannot be read"),
    "missing shard": (shards(lose="model-00002-of-00002.safetensors"), "model-00002-of-00002.safetensors is missing"),
    "missing shard, no index": (unindexed, "model-00002-of-00002.safetensors is missing"),
    "wrong shard": (shards(move="fc.weight"), r"puts tensor fc\.weight into model-00002"),
    "total size": (shards(total=7), "total_size is 7, but the shards hold"),
    "index no json": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "no valid shard index"),
    "same name in two files": (twice, r"tensor norm\.weight is in both"),
}  # fmt: skip


def refuse(src: Path, expected: str, capsys: pytest.CaptureFixture[str], format: str = "bf16") -> None:
    """One sentence, exit code 2, nothing beside the source; the dry run refuses the same."""
    before = sorted(p.name for p in src.parent.iterdir())
    messages = set()
    for dry_run in (False, True):
        with pytest.raises(DsparkError, match=expected) as caught:
            convert(ConvertOptions(str(src), str(src.parent / "dst"), format, dry_run=dry_run))
        messages.add(str(caught.value))
        assert caught.value.exit_code == 2
    assert len(messages) == 1
    message = messages.pop()
    assert len(message.splitlines()) == 1
    assert len(message) < 700
    assert sorted(p.name for p in src.parent.iterdir()) == before
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    change, expected = TENSORS[name]
    found = source.tensors()
    change(found)
    format = "mlx-nvfp4" if name == "name taken" else "bf16"
    refuse(source.write(tmp_path / "src", found), expected, capsys, format)


@pytest.mark.parametrize("name", METADATA)
def test_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    config, hf, expected = METADATA[name]
    refuse(source.write(tmp_path / "src", config=config, hf=hf), expected, capsys)


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, expected = FILES[name]
    src = source.write(tmp_path / "src")
    damage(src)
    refuse(src, expected, capsys)


def test_compressed_tensors_scale_that_is_no_reciprocal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = source.tensors("compressed")
    swap("fc.weight_global_scale", data=source.SCALE_2.tobytes())(found)
    refuse(source.write(tmp_path / "src", found, style="compressed"), "above 1; it looks like ModelOpt's", capsys)
    both = {**source.tensors("compressed"), "fc.weight": ("BF16", (1,), b"ab")}
    refuse(source.write(tmp_path / "two", both, style="compressed"), "both weight and weight_packed", capsys)


def test_negative_block_scales_are_a_warning(tmp_path: Path) -> None:
    found = source.tensors()
    poke("fc.weight_scale", 3, 0xC0)(found)
    src = source.write(tmp_path / "src", found)
    report = convert(ConvertOptions(str(src), str(tmp_path / "dst"), verify=True))
    assert report.warnings == ("fc.weight_scale has 1 negative block scales, which ModelOpt never writes",)


def test_sources_that_are_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = source.write(tmp_path / "src") / "model.safetensors"
    for given, expected in ((str(file), "is a file"), (str(tmp_path / "none"), "source .* is no folder here")):
        with pytest.raises(DsparkError, match=expected) as caught:
            convert(ConvertOptions(given, str(tmp_path / "dst")))
        assert caught.value.exit_code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src = source.write(tmp_path / "src")
    (src / "model.safetensors").chmod(0)
    refuse(src, "cannot be read", capsys)
