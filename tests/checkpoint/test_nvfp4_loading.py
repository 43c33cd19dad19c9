"""NVFP4 drafters loaded as they are: in the producer's form, in compressed-tensors' and repacked."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import numpy as np
import nvfp4_source as source
import pytest

from mlx_dspark import Pair, load
from mlx_dspark.checkpoint.convert import ConvertOptions, convert
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.errors import DsparkError
from mlx_dspark.models.dspark import DSpark
from mlx_dspark.ops.linear import QuantizedLinear

PROMPT = "There are 3 tickets in each jar. How many tickets are there in 6 jars?"
ROWS, WIDTH = 24, 96


def weights(folder: Path) -> Weights:
    return Weights.with_nvfp4(folder, None, mx.float32)


def exact(folder: Path, name: str, style: str, group: int) -> np.ndarray:
    """The matrix in float64 from the definition: E2M1 code x E4M3 block scale x the matrix's own scale."""
    stored = source.module(name, ROWS, WIDTH, style=style, group=group, seed=1)
    codes, blocks, scale = (np.frombuffer(data, kind) for (_, _, data), kind in
                            zip(stored.values(), ("u1", "u1", "<f4"), strict=True))  # fmt: skip
    nibbles = np.stack([codes & 15, codes >> 4], -1).reshape(ROWS, WIDTH)
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[nibbles & 7] * np.where(nibbles & 8, -1, 1)
    e4m3 = np.array(mx.from_fp8(mx.array(blocks), mx.float32), np.float64).reshape(ROWS, WIDTH // group)
    whole = float(scale[0]) if style == "modelopt" else 1 / float(scale[0])
    return magnitude * np.repeat(e4m3, group, axis=1) * whole


@pytest.mark.parametrize(("style", "group"), [("modelopt", 16), ("modelopt", 32), ("compressed", 16)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_a_linear_multiplies_by_the_exact_matrix(tmp_path: Path, style: str, group: int, dtype: mx.Dtype) -> None:
    folder = source.write(tmp_path / "src", style=style, group=group)
    linear = weights(folder).linear("fc", ROWS, WIDTH)
    assert isinstance(linear, QuantizedLinear)
    assert linear.packed.weight.nbytes == ROWS * WIDTH // 2, "the matrix is no longer in 4 bits"
    x = mx.random.normal((3, WIDTH), key=mx.random.key(1)).astype(dtype)
    y = linear(x)
    matrix = exact(folder, "fc", style, group)
    wide = np.array(x.astype(mx.float32), np.float64)
    bound = np.abs(wide) @ np.abs(matrix).T * {mx.float32: 1e-6, mx.bfloat16: 4e-3, mx.float16: 5e-4}[dtype]
    assert y.dtype == dtype
    assert (np.abs(np.array(y.astype(mx.float32), np.float64) - wide @ matrix.T) <= bound).all()


@pytest.mark.parametrize("style", ["modelopt", "compressed"])
def test_the_repacked_form_has_the_same_bits(tmp_path: Path, style: str) -> None:
    folder = source.write(tmp_path / "src", style=style)
    convert(ConvertOptions(str(folder), str(tmp_path / "dst"), "mlx-nvfp4"))
    from mlx_dspark.checkpoint.config import Keys, read_json, read_quantization

    path = tmp_path / "dst" / "config.json"
    said = read_quantization(Keys(path, read_json(path)))
    repacked = Weights.with_nvfp4(tmp_path / "dst", said, mx.float32).linear("fc", ROWS, WIDTH)
    straight = weights(folder).linear("fc", ROWS, WIDTH)
    x = mx.random.normal((5, WIDTH), key=mx.random.key(2))
    assert mx.array_equal(repacked(x), straight(x))


def test_every_way_to_the_embedded_drafter_drafts_alike(tmp_path: Path, maker: ModuleType, demo: Pair) -> None:
    """Straight and repacked are one drafter; the bf16 file, whose weights are rounded once more, drafts as well."""
    maker.write_small(tmp_path / "src")
    for form in ("mlx-nvfp4", "bf16"):
        convert(ConvertOptions(str(tmp_path / "src"), str(tmp_path / form), form))
    found = {}
    for name in ("src", "mlx-nvfp4", "bf16"):
        pair = load("demo", str(tmp_path / name))
        found[name] = pair.generate(PROMPT, max_tokens=60, max_draft=7, temperature=0)
    plain = demo.generate(PROMPT, max_tokens=60, max_draft=0, temperature=0)
    assert all(result.tokens == plain.tokens for result in found.values())
    assert [r.accept_length for r in (found["mlx-nvfp4"], found["bf16"])] == [found["src"].accept_length] * 2


def test_the_loaded_drafter_multiplies_by_the_exact_matrices(tmp_path: Path, maker: ModuleType) -> None:
    """A matrix kept in 4 bits by whatever kernels this machine has, against the same one written out in float32."""
    maker.write_small(tmp_path / "src")
    kept = load("demo", str(tmp_path / "src")).drafter
    assert isinstance(kept, DSpark)
    size = kept.config.hidden_size
    x = mx.random.normal((4, size * len(kept.taps)), key=mx.random.key(3))
    fc = weights(tmp_path / "src").linear("fc", size, size * len(kept.taps))
    assert isinstance(fc, QuantizedLinear)
    q = fc.packed
    assert q.tensor_scale is not None
    whole = mx.dequantize(q.weight, q.scales, None, group_size=16, bits=4, mode="nvfp4").astype(mx.float32)
    expected = x @ (whole * q.tensor_scale).T
    # The accelerator's activations have 16 bits a group of 64.
    assert mx.abs(kept.fc(x) - expected).max() < 1e-4 * mx.abs(expected).max()


def test_a_bf16_export_without_metadata_still_loads(tmp_path: Path, maker: ModuleType) -> None:
    """The tensors decide: metadata may be missing, as in one third-party copy."""
    maker.write_small(tmp_path / "src")
    path = tmp_path / "src" / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "quantization_config"}))
    (tmp_path / "src" / "hf_quant_config.json").unlink()
    assert load("demo", str(tmp_path / "src")).generate(PROMPT, max_tokens=8, max_draft=4).tokens


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: f.pop("fc.weight_scale_2"), "fc has no weight_scale_2"),
        (lambda f: f.update({"fc.weight_scale": ("U8", *f["fc.weight_scale"][1:])}), "MXFP4"),
        (lambda f: f.update({"fc.pre_quant_scale": ("F32", (96,), b"\0" * 384)}), "AWQ"),
        (lambda f: f.update({"fc.weight_scale_2": ("F32", (), np.float32("nan").tobytes())}), "finite"),
    ],
)
def test_what_is_not_whole_nvfp4_is_refused(tmp_path: Path, damage, words: str) -> None:
    found = source.tensors()
    damage(found)
    with pytest.raises(DsparkError, match=words):
        weights(source.write(tmp_path / "src", found))


def test_a_matrix_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DsparkError, match=r"NVFP4 matrix \[24, 96\].*\[24, 128\]"):
        weights(source.write(tmp_path / "src")).linear("fc", ROWS, 128)
