"""A conversion from end to end: every value, every file beside the weights, both formats, sharded and odd sources."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import mlx.core as mx
import numpy as np
import nvfp4_source as source
import pytest
from exact import bf16_bits, round_to

from mlx_dspark.checkpoint.convert import ConvertOptions, Report, convert
from mlx_dspark.checkpoint.nvfp4 import decode_plainly
from mlx_dspark.checkpoint.safetensors import read_folder
from mlx_dspark.errors import ConversionError, OptionError

MODULES = ("fc", "layers.0.mlp.up_proj")
OTHERS = ("embed_tokens.weight", "norm.weight", "layers.0.bias", "layers.0.half")


def run(src: Path, dst: Path, **options: object) -> Report:
    return convert(ConvertOptions(str(src), str(dst), **options))


def data(folder: Path, name: str) -> bytes:
    info = read_folder(folder)[name]
    return info.file.read_bytes()[info.begin : info.end]


def expected(found: dict[str, source.Tensor], name: str) -> np.ndarray:
    """A decoded matrix' bits from the dictionary that was written."""
    reciprocal = f"{name}.weight_packed" in found
    packed = found[f"{name}.weight_packed" if reciprocal else f"{name}.weight"]
    scale = found[f"{name}.weight_global_scale" if reciprocal else f"{name}.weight_scale_2"]
    blocks = np.frombuffer(found[f"{name}.weight_scale"][2], np.uint8)
    codes = np.frombuffer(packed[2], np.uint8)
    group = codes.size * 2 // blocks.size
    return decode_plainly(codes, blocks, np.frombuffer(scale[2], "<f4")[0], group, reciprocal=reciprocal)


@pytest.mark.parametrize(("style", "group"), [("modelopt", 16), ("modelopt", 32), ("compressed", 16)])
def test_bf16_values_and_files(tmp_path: Path, style: str, group: int) -> None:
    found = source.tensors(style, group)
    report = run(source.write(tmp_path / "src", found, style=style, group=group), tmp_path / "a" / "b" / "dst")
    dst = tmp_path / "a" / "b" / "dst"
    assert sorted(p.name for p in dst.iterdir()) == [
        "LICENSE", "README.md", "config.json", "conversion.json", "model.safetensors",
    ]  # fmt: skip
    tensors = read_folder(dst)
    assert set(tensors) == {*OTHERS, *(f"{m}.weight" for m in MODULES)}
    for name in OTHERS:
        assert (tensors[name].dtype, data(dst, name)) == (found[name][0], found[name][2])
    for name in MODULES:
        assert tensors[f"{name}.weight"].dtype == "BF16"
        assert np.array_equal(np.frombuffer(data(dst, f"{name}.weight"), "<u2"), expected(found, name))
    loaded = mx.load(str(dst / "model.safetensors"))
    assert loaded["fc.weight"].shape == (24, 96)
    assert loaded["fc.weight"].dtype == mx.bfloat16
    assert np.array_equal(np.array(loaded["fc.weight"].view(mx.uint16)).reshape(-1), expected(found, "fc"))
    config = json.loads((dst / "config.json").read_text())
    assert config == {**source.CONFIG, "text_config": {"dtype": "bfloat16"}}
    assert (dst / "LICENSE").read_text() == source.LICENSE
    assert report.parameters == 24 * 96 + 40 * 32 + 50 * 32 + 33 + 5 + 9
    assert report.left_out == ("modeling_evil.py",)


@pytest.mark.parametrize(("style", "group"), [("modelopt", 16), ("modelopt", 32), ("compressed", 16)])
def test_repacked_dequantises_to_the_bf16_result(tmp_path: Path, style: str, group: int) -> None:
    found = source.tensors(style, group)
    src = source.write(tmp_path / "src", found, style=style, group=group)
    run(src, tmp_path / "dst", format="mlx-nvfp4")
    loaded = mx.load(str(tmp_path / "dst" / "model.safetensors"))
    key = "weight_scale_2" if style == "modelopt" else "weight_global_scale"
    config = json.loads((tmp_path / "dst" / "config.json").read_text())
    assert config["quantization"] == {"group_size": 16, "bits": 4, "mode": "nvfp4", "tensor_scale": key}
    assert "quantization_config" not in config
    assert not any("global_scale" in name for name in loaded if style == "modelopt")
    for name in MODULES:
        weight, scales, scale = (loaded[f"{name}.{part}"] for part in ("weight", "scales", key))
        assert weight.dtype == mx.uint32
        unscaled = mx.dequantize(weight, scales, group_size=16, bits=4, mode="nvfp4", dtype=mx.bfloat16)
        ones = decode_plainly(
            np.array(weight).view(np.uint8).reshape(-1), np.array(scales).reshape(-1), np.float32(1), 16
        )
        assert np.array_equal(np.array(unscaled.view(mx.uint16)).reshape(-1), ones)
        got = decode_plainly(
            np.array(weight).view(np.uint8).reshape(-1), np.array(scales).reshape(-1),
            np.array(scale).reshape(-1)[0], 16, reciprocal=style == "compressed",
        )  # fmt: skip
        assert np.array_equal(got, expected(found, name))
        if style == "modelopt":
            whole = mx.dequantize(weight, scales, group_size=16, bits=4, mode="nvfp4", global_scale=scale * 2688)
            assert np.array_equal(np.array(whole.astype(mx.bfloat16).view(mx.uint16)).reshape(-1), got)
    for name in OTHERS:
        assert data(tmp_path / "dst", name) == found[name][2]


@pytest.mark.parametrize("columns", [16, 32, 48])
def test_all_codes_through_a_file(tmp_path: Path, columns: int) -> None:
    """16 codes x three block scales x two tensor scales, against exact arithmetic rounded once; -0 stays -0."""
    row = np.resize(np.arange(16, dtype=np.uint8), columns)
    packed = np.tile(row[0::2] | row[1::2] << 4, (3, 1))
    blocks = np.repeat(np.array([[0x01], [0x38], [0x7E]], np.uint8), columns // 16, 1)
    value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    found: dict[str, source.Tensor] = {}
    for number, scale in enumerate((2.0**-10, 0.37)):
        found[f"m{number}.weight"] = ("U8", packed.shape, packed.tobytes())
        found[f"m{number}.weight_scale"] = ("F8_E4M3", blocks.shape, blocks.tobytes())
        found[f"m{number}.weight_scale_2"] = ("F32", (), np.float32(scale).tobytes())
    run(source.write(tmp_path / "src", found), tmp_path / "dst")
    for number, scale in enumerate((2.0**-10, 0.37)):
        bits = np.frombuffer(data(tmp_path / "dst", f"m{number}.weight"), "<u2").reshape(3, columns)
        exact = value[row] * np.array([[2.0**-9], [1], [448]]) * float(np.float32(scale))
        sign = np.signbit(exact).astype(np.uint16) << 15
        once = [bf16_bits(round_to(Fraction(x), 8)) for x in np.abs(exact).reshape(-1).tolist()]
        assert np.array_equal(bits, np.array(once, np.uint16).reshape(3, columns) | sign)
        assert (bits[:, 8] == 0x8000).all()


def test_report_lists_every_tensor(tmp_path: Path) -> None:
    found = source.tensors()
    found["fc.input_scale"] = ("F32", (), np.float32(1).tobytes())
    src = source.write(tmp_path / "src", found)
    shown = run(src, tmp_path / "dst")
    assert shown.dropped == ("fc.input_scale",)
    report = json.loads((tmp_path / "dst" / "conversion.json").read_text())
    assert [d["name"] for d in report["dropped"]] == ["fc.input_scale"]
    assert "weight_scale_2" in report["arithmetic"]
    assert report["versions"].keys() == {"python", "numpy"}
    result = read_folder(tmp_path / "dst")
    assert {t["name"] for t in report["tensors"]} == set(result)
    for entry in report["tensors"]:
        assert entry["result"]["sha256"] == hashlib.sha256(data(tmp_path / "dst", entry["name"])).hexdigest()
        assert (entry["result"]["dtype"], tuple(entry["result"]["shape"])) == (
            result[entry["name"]].dtype, result[entry["name"]].shape,
        )  # fmt: skip
        for part in entry["source"]:
            assert (part["dtype"], tuple(part["shape"])) == found[part["name"]][:2]
            assert part["sha256"] == hashlib.sha256(found[part["name"]][2]).hexdigest()
    run(src, tmp_path / "plain", hashes=False)
    assert "sha256" not in (tmp_path / "plain" / "conversion.json").read_text()


def test_nothing_of_this_machine_is_written_and_a_second_run_gives_the_same_bytes(tmp_path: Path) -> None:
    src = source.write(tmp_path / "src")
    for name in ("one", "two"):
        run(src, tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
        assert str(tmp_path).encode() not in path.read_bytes()


def test_model_card_is_made_from_the_source(tmp_path: Path) -> None:
    cached = tmp_path / "models--org--Name-NVFP4" / "snapshots" / ("ab" * 20)
    src = source.write(cached)
    run(src, tmp_path / "dst")
    card = (tmp_path / "dst" / "README.md").read_text()
    for text in ("org/Name-NVFP4", "ab" * 20, "Qwen3DSparkModel", "5,231", "2 decoded to bf16", "4 passed through",
                 "license_name: openmdw-1.1", "base_model: org/Name-NVFP4", "Copyright (c) 2026 Someone.",
                 "modelopt 0.47.0",
                 "mlx-dspark generate"):  # fmt: skip
        assert text in card
    (src / "LICENSE").unlink()
    (src / "README.md").unlink()
    run(src, tmp_path / "bare")
    assert "had no licence file" in (tmp_path / "bare" / "README.md").read_text()


def test_a_hub_download_into_a_folder_names_its_commit(tmp_path: Path) -> None:
    src = source.write(tmp_path / "src")
    note = src / ".cache" / "huggingface" / "download" / "config.json.metadata"
    note.parent.mkdir(parents=True)
    note.write_text("c" * 40 + "\nother\n")
    assert run(src, tmp_path / "dst", dry_run=True).revision == "c" * 40


@pytest.mark.parametrize("format", ["bf16", "mlx-nvfp4"])
def test_weight_and_scales_in_different_shards(tmp_path: Path, format: str) -> None:
    found = source.tensors()
    names = list(found)
    run(source.write(tmp_path / "one", found), tmp_path / "want", format=format)
    run(source.write_shards(tmp_path / "src", found, [names[0::2], names[1::2]]), tmp_path / "dst", format=format)
    want, got = read_folder(tmp_path / "want"), read_folder(tmp_path / "dst")
    assert want.keys() == got.keys()
    assert all(data(tmp_path / "want", n) == data(tmp_path / "dst", n) for n in want)
    assert not (tmp_path / "dst" / "model.safetensors.index.json").exists()


@pytest.mark.parametrize(
    ("config", "hf"),
    [
        ({"quant_algo": "W4A16_NVFP4", "kv_cache_quant_algo": None}, {}),
        ({"quant_algo": "nvfp4"}, {}),
        ({"quant_method": "modelopt"}, None),
        (None, None),
        (
            None,
            source.hf_quant(
                quant_algo="MIXED_PRECISION",
                quantized_layers={
                    "fc": {"quant_algo": "NVFP4", "group_size": 16},
                    "layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
                },
            ),
        ),
    ],
)
def test_every_form_of_the_metadata(tmp_path: Path, config: dict | None, hf: dict | None) -> None:
    values = {**source.CONFIG, **({"quantization_config": config} if config else {})}
    src = source.write(tmp_path / "src", config=values, hf=hf)
    assert run(src, tmp_path / "dst").modules == 2


def test_metadata_may_be_missing_altogether(tmp_path: Path) -> None:
    assert run(source.write(tmp_path / "src", config=source.CONFIG, hf={}), tmp_path / "dst").modules == 2


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mlx_dspark.cli.convert import run as command

    src = source.write(tmp_path / "src")
    assert command(str(src), str(tmp_path / "dst"), dry_run=True) == 0
    shown = capsys.readouterr().out
    assert "decoded   fc.weight  U8 [24, 48] + F8_E4M3 [24, 6] + F32 [] -> BF16 [24, 96]" in shown
    assert "nothing was written" in shown
    assert [p.name for p in tmp_path.iterdir()] == ["src"]


@pytest.mark.parametrize(("format", "group"), [("bf16", 16), ("mlx-nvfp4", 16), ("mlx-nvfp4", 32)])
def test_verify_proves_and_finds_one_wrong_bit(tmp_path: Path, format: str, group: int) -> None:
    src, dst = source.write(tmp_path / "src", group=group), tmp_path / "dst"
    assert run(src, dst, format=format, verify=True).written
    checked = run(src, dst, verify=True)
    assert (checked.written, checked.verified, checked.format) == (False, True, format)
    path = dst / "model.safetensors"
    good = path.read_bytes()
    tensors = read_folder(dst)
    for name, info in tensors.items():
        bad = bytearray(good)
        bad[info.end - 1] ^= 1
        path.write_bytes(bad)
        with pytest.raises(ConversionError, match=f"tensor {name} differs"):
            run(src, dst, verify=True)
    path.write_bytes(good)
    (dst / "config.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"config\.json: architectures"):
        run(src, dst, verify=True)


def test_verify_of_another_source(tmp_path: Path) -> None:
    src, dst = source.write(tmp_path / "src"), tmp_path / "dst"
    run(src, dst)
    found = source.tensors()
    found["extra.weight"] = ("BF16", (2,), b"abcd")
    with pytest.raises(ConversionError, match=r"extra\.weight is missing"):
        run(source.write(tmp_path / "other", found), dst, verify=True)
    (dst / "hf_quant_config.json").write_text("{}")
    with pytest.raises(ConversionError, match="hf_quant_config"):
        run(src, dst, verify=True)


def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="--format is 'gguf'"):
        ConvertOptions("a", "b", "gguf")
    with pytest.raises(OptionError, match="--dry-run"):
        ConvertOptions("a", "b", dry_run=True, verify=True)


def test_needs_numpy_only(tmp_path: Path) -> None:
    """Neither mlx nor torch nor anything that reads models is imported, even where importing them would fail."""
    src = source.write(tmp_path / "src")
    blocked = "mlx", "torch", "transformers", "mlx_lm", "safetensors", "huggingface_hub"
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
        "from mlx_dspark.cli.convert import run\nsys.exit(run(sys.argv[1], sys.argv[2], verify=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(src), str(tmp_path / "dst")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "every tensor proved" in done.stdout


def test_metadata_of_the_file_is_kept_and_data_is_aligned(tmp_path: Path) -> None:
    found = {"z.odd": ("U8", (3,), b"abc"), **source.tensors()}
    run(source.write(tmp_path / "src", found), tmp_path / "dst", format="mlx-nvfp4")
    for info in read_folder(tmp_path / "dst").values():
        size = {"F32": 4, "U32": 4, "BF16": 2, "F16": 2}.get(info.dtype, 1)
        assert info.begin % size == 0
