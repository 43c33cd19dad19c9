"""A Metal kernel's body and launch as one C++ file for the shim: the signature MLX would write, in our terms.

Follows what `mx.fast.metal_kernel` generates: template arguments, inputs (a reference where they have no
dimensions), NAME_shape, NAME_strides and NAME_ndim and the thread attributes where the body names them.
The text of header and body keeps its line numbers, so that the compiler's and the scheduler's words point into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx

TYPES = {
    mx.bool_: "bool",
    mx.int8: "int8_t",
    mx.int16: "int16_t",
    mx.int32: "int32_t",
    mx.int64: "int64_t",
    mx.uint8: "uint8_t",
    mx.uint16: "uint16_t",
    mx.uint32: "uint32_t",
    mx.uint64: "uint64_t",
    mx.float16: "float16_t",
    mx.bfloat16: "bfloat16_t",
    mx.float32: "float",
}
ATTRIBUTES = {
    "dispatch_threads_per_threadgroup": "emu::dispatch.group",
    "simdgroup_index_in_threadgroup": "emu::self->simdgroup()",
    "simdgroups_per_threadgroup": "(emu::self->threads() + emu::LANES - 1) / emu::LANES",
    "thread_index_in_simdgroup": "emu::self->lane()",
    "thread_index_in_threadgroup": "emu::self->index",
    "thread_position_in_grid": "emu::self->in_grid",
    "thread_position_in_threadgroup": "emu::self->in_group",
    "threadgroup_position_in_grid": "emu::self->group",
    "threadgroups_per_grid": "(emu::dispatch.grid + emu::dispatch.group - 1u) / emu::dispatch.group",
    "threads_per_grid": "emu::dispatch.grid",
    "threads_per_simdgroup": "emu::LANES",
    "threads_per_threadgroup": "emu::self->group_size",
}
# `threadgroup T name` declares memory; `threadgroup T* name` only points at some.
DECLARED = re.compile(r"\bthreadgroup(\s+(?:\w+::)*\w+(?:\s*<[^<>]*>)?\s+\w+\s*[\[;,=])")
POINTED = re.compile(r"\bthreadgroup\s+(?=[\w:<>,\s]+[*&])")

Template = Sequence[tuple[str, mx.Dtype | int | bool]]


@dataclass(frozen=True)
class Argument:
    """A buffer as the kernel sees it."""

    name: str
    dtype: mx.Dtype
    shape: tuple[int, ...]


def translate(
    source: str, header: str, template: Template, inputs: Sequence[Argument], outputs: Sequence[Argument]
) -> str:
    """The C++ file that defines emu::kernel; its data and counts are the inputs', then the outputs'."""
    lines = ['#include "shim.h"', *(_template(name, value) for name, value in template)]
    lines += ['#line 1 "header"', _without_spaces(header)]
    lines += ["void emu::kernel(void* const* data, const size_t* count) {", "  (void)data, (void)count;"]
    for index, argument in enumerate(inputs):
        lines += _input(argument, index, source)
    for index, argument in enumerate(outputs, len(inputs)):
        lines.append(_buffer(argument, TYPES[argument.dtype], index))
    lines += [f"  const auto {name} = {value};" for name, value in ATTRIBUTES.items() if _named(name, source)]
    return "\n".join([*lines, '#line 1 "body"', _without_spaces(source), "}", ""])


def _template(name: str, value: mx.Dtype | int | bool) -> str:
    if isinstance(value, mx.Dtype):
        return f"using {name} = {TYPES[value]};"
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    return f"constexpr int {name} = {value};"


def _input(argument: Argument, index: int, source: str) -> Iterator[str]:
    name, kind = argument.name, f"const {TYPES[argument.dtype]}"
    if not argument.shape:
        yield f"  {kind}& {name} = *static_cast<{kind}*>(data[{index}]);"
        return
    yield _buffer(argument, kind, index)
    dims, strides = argument.shape, [1]
    for dim in reversed(dims[1:]):
        strides.insert(0, strides[0] * dim)
    facts = {
        f"{name}_shape": f"static const int {name}_shape[] = {{{', '.join(map(str, dims))}}};",
        f"{name}_strides": f"static const int64_t {name}_strides[] = {{{', '.join(map(str, strides))}}};",
        f"{name}_ndim": f"static const int {name}_ndim = {len(dims)};",
    }
    yield from (f"  {text}" for fact, text in facts.items() if _named(fact, source))


def _buffer(argument: Argument, kind: str, index: int) -> str:
    return f'  emu::Buffer<{kind}> {argument.name}{{static_cast<{kind}*>(data[{index}]), count[{index}], "{argument.name}"}};'


def _named(name: str, text: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _without_spaces(text: str) -> str:
    """The text with `threadgroup` turned into the shim's storage class, or dropped from pointer types."""
    return POINTED.sub("", DECLARED.sub(r"EMU_THREADGROUP\1", text))
