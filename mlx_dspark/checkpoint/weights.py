"""A checkpoint's tensors as a source that models draw from: every draw is checked, and nothing may be left over.

Knows names, shapes and packings; turns them into the holders of `ops`. Arrays stay on disk until evaluated, so
a whole model is built and checked before the first weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import mlx.core as mx

from mlx_dspark.checkpoint.config import TENSOR_SCALES, Quantization
from mlx_dspark.checkpoint.nvfp4_modules import Module, read_modules
from mlx_dspark.checkpoint.safetensors import TensorInfo, read_folder
from mlx_dspark.errors import TensorError
from mlx_dspark.ops.kernels import STOCK, Kernels, Matrix
from mlx_dspark.ops.linear import Embedding, Linear, QuantizedWeight, quantize

FLOATS = {"F32": mx.float32, "BF16": mx.bfloat16, "F16": mx.float16}


class Weights:
    """Tensors of one folder. Floating tensors come out in `dtype`; names drawn are remembered for `finish`.

    `quantization` is mlx's own entry; `modules` are matrices in the form their NVFP4 producer wrote.
    """

    def __init__(
        self,
        folder: Path,
        quantization: Quantization | None,
        dtype: mx.Dtype | None = None,
        modules: Mapping[str, Module] | None = None,
        kernels: Kernels = STOCK,
    ):
        self.folder = folder
        self.tensors = read_folder(folder)
        self.quantization = quantization
        self.modules = modules or {}
        self.kernels = kernels
        self.dtype = dtype or self.stored_dtype
        self._files: dict[Path, dict[str, mx.array]] = {}
        self._drawn: set[str] = set()
        self.ignored: list[str] = []

    @classmethod
    def with_nvfp4(
        cls, folder: Path, quantization: Quantization | None, dtype: mx.Dtype, kernels: Kernels = STOCK
    ) -> Weights:
        """Weights that, where mlx has no entry, also read NVFP4 matrices in the form their producer wrote."""
        modules, unused = ({}, []) if quantization else read_modules(folder)
        weights = cls(folder, quantization, dtype, modules, kernels)
        weights._drawn.update(unused)
        return weights

    @property
    def stored_dtype(self) -> mx.Dtype:
        """The dtype most of the checkpoint's floating tensors are stored in."""
        counts: dict[str, int] = {}
        for info in self.tensors.values():
            if info.dtype in FLOATS:
                counts[info.dtype] = counts.get(info.dtype, 0) + 1
        return FLOATS[max(counts, key=lambda k: counts[k])] if counts else mx.float32

    def has(self, name: str) -> bool:
        return name in self.tensors

    def array(self, name: str, shape: tuple[int, ...], dtype: mx.Dtype | None = None) -> mx.array:
        """A floating tensor of exactly this shape, in `dtype` (default: the checkpoint's activation dtype)."""
        info = self._info(name)
        if info.dtype not in FLOATS:
            raise TensorError(f"{info.file}: tensor {name} is {info.dtype}, but a floating dtype is needed here")
        if info.shape != shape:
            raise TensorError(
                f"{info.file}: tensor {name} has shape {list(info.shape)}, but config.json asks for {list(shape)}"
            )
        return self._raw(info).astype(dtype or self.dtype)

    def linear(self, name: str, out_size: int, in_size: int, *, bias: bool = False) -> Linear:
        """`name`.weight [out, in], dense or quantised as stored, with its bias if it has one (`bias`: it must)."""
        offset = self.array(f"{name}.bias", (out_size,)) if bias or self.has(f"{name}.bias") else None
        return self.kernels.linear(self._matrix(name, (out_size, in_size)), offset)

    def requantized(self, name: str, out_size: int, in_size: int, bits: int) -> Linear:
        """`linear` without a bias, a dense weight quantised to `bits` on the way (0 keeps it as stored)."""
        found = self._matrix(name, (out_size, in_size))
        if bits and isinstance(found, mx.array) and in_size % 64 == 0:
            found = quantize(found.astype(self.dtype), bits)
        return self.kernels.linear(found)

    def embedding(self, name: str, rows: int, width: int) -> tuple[Embedding, Linear]:
        """The table `name`.weight [rows, width], and the same weight as an output projection (for tied heads)."""
        if self._quantized(name):
            packed = self._packed(name, (rows, width))
            return self.kernels.embedding(packed), self.kernels.linear(packed)
        weight = self._dense(name, (rows, width))
        return self.kernels.embedding(weight), self.kernels.linear(weight)

    def stack(self, stacked: str, single: Callable[[int], str], count: int, shape: tuple[int, int]) -> Matrix:
        """Expert matrices [count, out, in], stored stacked under one name or one by one under `single(e)`."""
        if self.has(f"{stacked}.weight"):
            return self._matrix(stacked, (count, *shape))
        if not self.has(f"{single(0)}.weight"):
            raise TensorError(f"{self.folder} has neither {stacked}.weight nor {single(0)}.weight; it is incomplete")
        return mx.stack([self._dense(single(e), shape) for e in range(count)])

    def ignore(self, prefix: str) -> None:
        """Tensors under `prefix` may be present and are not used."""
        names = [n for n in self.tensors if n.startswith(prefix)]
        self._drawn.update(names)
        self.ignored += names

    def finish(self) -> None:
        """Raise TensorError if the checkpoint holds a tensor that nothing drew."""
        left = sorted(set(self.tensors) - self._drawn)
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise TensorError(
                f"{self.tensors[left[0]].file} holds tensor {left[0]}{more}, which config.json has no place for; "
                "the weights and the config do not belong together"
            )

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise TensorError(f"{self.folder} has no tensor {name}; the weights are incomplete or not of this config")
        self._drawn.add(name)
        return info

    def _raw(self, info: TensorInfo) -> mx.array:
        if info.file not in self._files:
            loaded = mx.load(str(info.file))
            assert isinstance(loaded, dict)
            self._files[info.file] = loaded
        return self._files[info.file][info.name]

    def _matrix(self, name: str, shape: tuple[int, ...]) -> Matrix:
        return self._packed(name, shape) if self._quantized(name) else self._dense(name, shape)

    def _dense(self, name: str, shape: tuple[int, ...]) -> mx.array:
        """A matrix in the activations' dtype, or as stored where the kernels take that as well."""
        found = self.tensors.get(f"{name}.weight")
        stored = FLOATS.get(found.dtype) if found and self.kernels.mixed else None
        return self.array(f"{name}.weight", shape, stored)

    def _quantized(self, name: str) -> bool:
        return name in self.modules or self.has(f"{name}.scales")

    def _packed(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight:
        return self._module(self.modules[name], shape) if name in self.modules else self._mlx_packed(name, shape)

    def _module(self, module: Module, shape: tuple[int, ...]) -> QuantizedWeight:
        """A producer's NVFP4 matrix in mlx's form: the same bytes; blocks of 32 values repeat their scale."""
        if module.shape != shape:
            raise TensorError(
                f"{module.weight.file}: {module.name} is an NVFP4 matrix {list(module.shape)}, "
                f"but config.json asks for {list(shape)}"
            )
        self._drawn.update(info.name for info in (module.weight, module.scales, module.scale))
        scales = mx.repeat(self._raw(module.scales), module.group // 16, axis=-1)
        codes, factor = self._raw(module.weight).view(mx.uint32), mx.array(module.tensor_scale, mx.float32)
        return QuantizedWeight(codes, scales, None, 16, 4, "nvfp4", 1 / factor if module.reciprocal else factor)

    def _mlx_packed(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight:
        """The three parts of a quantised matrix; bits and group follow from shapes and must agree with the config."""
        weight, scales = self._info(f"{name}.weight"), self._info(f"{name}.scales")
        said = self.quantization.of(name) if self.quantization else None
        if said is None:
            raise TensorError(f"{weight.file}: {name} is quantised, but config.json has no quantization entry for it")
        lead, width = shape[:-1], shape[-1]
        want = (*lead, width * said.bits // 32)
        groups = (*lead, width // said.group_size)
        if weight.dtype != "U32" or weight.shape != want or scales.shape != groups:
            raise TensorError(
                f"{weight.file}: {name} has weight {weight.dtype} {list(weight.shape)}, scales {list(scales.shape)}, "
                f"but {said.bits} bits in groups of {said.group_size} need U32 {list(want)} and {list(groups)}"
            )
        if said.mode == "affine":
            factors = self.array(f"{name}.scales", groups)
            offset = self.array(f"{name}.biases", groups)
            return QuantizedWeight(self._raw(weight), factors, offset, said.group_size, said.bits)
        scale = self._tensor_scale(name) if len(shape) == 2 else None
        return QuantizedWeight(self._raw(weight), self._raw(scales), None, said.group_size, said.bits, said.mode, scale)

    def _tensor_scale(self, name: str) -> mx.array | None:
        """The scale of the whole matrix, if config.json says that NVFP4 matrices have one and this one does."""
        names = self.quantization.tensor_scales if self.quantization else ()
        found = next((n for n in names if self.has(f"{name}.{n}")), None)
        if found is None:
            return None
        info = self._info(f"{name}.{found}")
        if info.dtype != "F32" or math.prod(info.shape) != 1:
            raise TensorError(f"{info.file}: {info.name} is {info.dtype} {list(info.shape)}, but it must be one F32")
        value = self._raw(info).reshape(())
        return 1 / value if TENSOR_SCALES[found] else value
