"""The decoder against the producers' and MLX's own code, where they are installed."""

from __future__ import annotations

import numpy as np
import pytest

from mlx_dspark.checkpoint import nvfp4

ROWS, WIDTH = 64, 256
MANTISSAS = (133, 161, 175, 203, 217, 245)


def sample(seed: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
    random = np.random.default_rng(seed)
    packed = random.integers(0, 256, (ROWS, WIDTH // 2), np.uint8)
    blocks = random.integers(0, 0x7F, (ROWS, WIDTH // 16), np.uint8)
    amax = np.float32(MANTISSAS[seed] / 128) if seed < len(MANTISSAS) else np.float32(random.uniform(0.01, 4))
    return packed, blocks, amax / np.float32(2688)


def decode(packed: np.ndarray, blocks: np.ndarray, scale: np.float32, *, reciprocal: bool = False) -> np.ndarray:
    out = np.empty(packed.size, "<u4")
    nvfp4.Decoder(scale, 16, reciprocal=reciprocal).decode(packed.reshape(-1), blocks.reshape(-1), out)
    return out.view("<u2").reshape(ROWS, WIDTH)


def values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("seed", range(12))
def test_mlx_dequantize(seed: int) -> None:
    """MLX's global scale is the largest magnitude, 2688 times ours; -0 included."""
    mx = pytest.importorskip("mlx.core")
    packed, blocks, scale = sample(seed)
    weight = mx.array(packed).view(mx.uint32)
    plain = mx.dequantize(weight, mx.array(blocks), group_size=16, bits=4, mode="nvfp4", dtype=mx.bfloat16)
    assert np.array_equal(np.array(plain.view(mx.uint16)), decode(packed, blocks, np.float32(1)))
    scaled = mx.dequantize(
        weight, mx.array(blocks), group_size=16, bits=4, mode="nvfp4",
        global_scale=mx.array(scale * np.float32(2688)), dtype=mx.bfloat16,
    ).astype(mx.bfloat16)  # fmt: skip
    assert np.array_equal(np.array(scaled.view(mx.uint16)), decode(packed, blocks, scale))


def test_small_floats_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = np.arange(16, dtype=np.uint8)
    four = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(four.view(np.uint32), nvfp4.E2M1.view(np.uint32))
    eight = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    same = (eight == nvfp4.E4M3) & (np.signbit(eight) == np.signbit(nvfp4.E4M3))
    assert (same | (np.isnan(eight) & np.isnan(nvfp4.E4M3))).all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_modelopt_dequantize(seed: int) -> None:
    """Equal in value; ModelOpt's table has +0 where code 8 is -0."""
    module = pytest.importorskip("modelopt.torch.quantization.qtensor.nvfp4_tensor", exc_type=ImportError)
    torch = pytest.importorskip("torch")
    packed, blocks, scale = sample(seed)
    tensor = module.NVFP4QTensor((ROWS, WIDTH), torch.bfloat16, torch.from_numpy(packed.copy()))
    got = tensor.dequantize(
        dtype=torch.bfloat16, scale=torch.from_numpy(blocks.copy()).view(torch.float8_e4m3fn),
        double_scale=torch.tensor(scale), block_sizes={-1: 16},
    )  # fmt: skip
    assert np.array_equal(got.float().numpy(), values(decode(packed, blocks, scale)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(12))
def test_compressed_tensors_decompress(seed: int) -> None:
    base = pytest.importorskip("compressed_tensors.compressors.nvfp4.base")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    torch = pytest.importorskip("torch")
    packed, blocks, scale = sample(seed)
    reciprocal = np.float32(1) / scale
    weights = quantization.QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16)
    state = {
        "weight_packed": torch.from_numpy(packed.copy()),
        "weight_scale": torch.from_numpy(blocks.copy()).view(torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([reciprocal]),
    }
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=weights)
    got = base.NVFP4PackedCompressor.decompress(state, scheme)["weight"]
    assert got.dtype == torch.bfloat16
    want = decode(packed, blocks, reciprocal, reciprocal=True)
    assert np.array_equal(got.view(torch.int16).numpy().view(np.uint16), want)
