# mypy: disable-error-code="no-untyped-call"
"""SIMD vectors of sixteen float32, with which the kernels compute.

LLVM only vectorises loops over Numba arrays if it can prove that they do not overlap; explicit vectors always work.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from robustcaps.capsules.kernels.cpu.jit import inlined, intrinsic, overload

LANES = 16
FLOAT, INT = ir.FloatType(), ir.IntType(32)
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)

Lanes = Any
"""Sixteen float32."""


class LanesType(types.Type):
    """Numba's type of `Lanes`."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


lanes = LanesType()


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: LanesType) -> None:
        super().__init__(manager, kind, FLOATS)


def _address(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    """Return the address of array[index, 0]."""
    array = context.make_array(kinds[0])(context, builder, values[0])
    indices = [*cgutils.unpack_tuple(builder, values[1]), context.get_constant(types.intp, 0)]
    pointer = cgutils.get_item_pointer(context, builder, kinds[0], array, indices)
    return builder.bitcast(pointer, FLOATS.as_pointer())


def _call(builder: Any, name: str, result: Any, values: Any, fastmath: tuple[str, ...] = ()) -> Any:
    """Call an LLVM intrinsic."""
    kind = ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v16f32")
    return builder.call(function, values, fastmath=fastmath)


@intrinsic
def load(_typing: Any, array: Any, index: Any) -> Any:
    """Return array[index, :16]."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_address(context, builder, signature.args, values), align=4, typ=FLOATS)

    return lanes(array, index), generate


@intrinsic
def store(_typing: Any, array: Any, index: Any, value: Any) -> Any:
    """Set array[index, :16]."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _address(context, builder, signature.args, values), align=4)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


def _splat(builder: Any, kind: Any, value: Any) -> Any:
    """Return a vector with the same value in all lanes."""
    vector = ir.VectorType(kind, LANES)
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(INT, 0))
    first = ir.Constant(INTS, [ir.Constant(INT, 0)] * LANES)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), first)


@intrinsic
def splat(_typing: Any, number: Any) -> Any:
    """Return a number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        number = context.cast(builder, values[0], signature.args[0], types.float32)
        return _splat(builder, FLOAT, number)

    return lanes(number), generate


@intrinsic
def fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once where the machine supports it."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _call(builder, "fmuladd", FLOATS, values)

    return lanes(a, b, c), generate


@intrinsic
def total(_typing: Any, a: Any) -> Any:
    """Return the sum over lanes."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _call(builder, "vector.reduce.fadd", FLOAT, [ir.Constant(FLOAT, 0.0), *values], fastmath=("reassoc",))

    return types.float32(a), generate


@intrinsic
def totals(_typing: Any, array: Any) -> Any:
    """Return the sums over lanes of array[0, :16] to array[15, :16] as one vector.

    Pairs of vectors are folded into one with half as many partial sums of each: 45 instructions for 16 sums.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows = [context.get_constant(types.intp, row) for row in range(LANES)]
        zero = context.get_constant(types.intp, 0)
        struct = context.make_array(signature.args[0])(context, builder, values[0])
        sums = []
        for row in rows:
            pointer = cgutils.get_item_pointer(context, builder, signature.args[0], struct, [row, zero])
            sums.append(builder.load(builder.bitcast(pointer, FLOATS.as_pointer()), align=4, typ=FLOATS))
        width = LANES
        while width > 1:
            width //= 2
            lower = [lane for lane in range(2 * LANES) if lane // width % 2 == 0]
            upper = [lane + width for lane in lower]
            sums = [_fold(builder, a, b, lower, upper) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        return sums[0]

    return lanes(array), generate


def _fold(builder: Any, a: Any, b: Any, lower: list[int], upper: list[int]) -> Any:
    """Return the chosen lanes of two vectors, added in pairs."""
    masks = (ir.Constant(INTS, [ir.Constant(INT, lane) for lane in chosen]) for chosen in (lower, upper))
    return builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks))


@intrinsic
def largest(_typing: Any, a: Any) -> Any:
    """Return the maximum over lanes."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return _call(builder, "vector.reduce.fmax", FLOAT, values)

    return types.float32(a), generate


@intrinsic
def maximum(_typing: Any, a: Any, b: Any) -> Any:
    """Return the elementwise maximum; `b` where either is NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *values), *values)

    return lanes(a, b), generate


@intrinsic
def _power_of_two(_typing: Any, shifted: Any) -> Any:
    """Return 2^n for n + MAGIC, whose lowest bits are n and become the exponent of the result."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        n = builder.bitcast(values[0], INTS)
        exponent = builder.add(n, _splat(builder, INT, ir.Constant(INT, 127)))
        return builder.bitcast(builder.shl(exponent, _splat(builder, INT, ir.Constant(INT, 23))), FLOATS)

    return lanes(shifted), generate


@intrinsic
def exponent(_typing: Any, x: Any) -> Any:
    """Return n of x = m 2^n with sqrt(1/2) <= m < sqrt(2), for normal x > 0."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.sitofp(_exponent_bits(builder, builder.bitcast(values[0], INTS)), FLOATS)

    return lanes(x), generate


@intrinsic
def mantissa(_typing: Any, x: Any) -> Any:
    """Return m of x = m 2^n with sqrt(1/2) <= m < sqrt(2), for normal x > 0."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        bits = builder.bitcast(values[0], INTS)
        shifted = builder.shl(_exponent_bits(builder, bits), _splat(builder, INT, ir.Constant(INT, 23)))
        return builder.bitcast(builder.sub(bits, shifted), FLOATS)

    return lanes(x), generate


def _exponent_bits(builder: Any, bits: Any) -> Any:
    """Return n as an integer: the number of binades above the one that begins at sqrt(1/2)."""
    above = builder.sub(bits, _splat(builder, INT, ir.Constant(INT, SQRT_HALF_BITS)))
    return builder.ashr(above, _splat(builder, INT, ir.Constant(INT, 23)))


@intrinsic
def zero_where_less(_typing: Any, value: Any, tested: Any, bound: Any) -> Any:
    """Return `value`, but 0 where `tested` < `bound`, which is false for NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        less = builder.fcmp_ordered("<", values[1], values[2])
        return builder.select(less, _splat(builder, FLOAT, ir.Constant(FLOAT, 0.0)), values[0])

    return lanes(value, tested, bound), generate


def _operator(operation: Callable[..., Any], instruction: str) -> None:
    """Define an operator for lanes."""

    @intrinsic
    def apply(_typing: Any, a: Any, b: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return getattr(builder, instruction)(*values)

        return lanes(a, b), generate

    @overload(operation)
    def choose(a: Any, b: Any) -> Any:
        def on_lanes(a: Any, b: Any) -> Any:
            return apply(a, b)

        return on_lanes if isinstance(a, LanesType) and isinstance(b, LanesType) else None


_operator(operator.add, "fadd")
_operator(operator.iadd, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.isub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")

MAGIC = 1.5 * 2.0**23
"""Adding it to a small float32 rounds that to an integer in the lowest bits."""
LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts: n * LN2_HIGH is exact for every n that occurs."""
SQRT_HALF_BITS = 0x3F3504F3
"""The bits of sqrt(1/2) as a float32."""
NEGLIGIBLE = -64.0
"""`exp` is exactly 0 below this: such assignments are negligible beside `SUPPORT_EPS`, and 1 - a is never subnormal."""


@inlined
def exp(x: Lanes) -> Lanes:
    """Return e^x for x <= 0: e^x = 2^n e^f with |f| <= ln(2)/2, and Taylor's series of e^f to f^7 (error < 1e-8)."""
    shifted = fma(x, splat(LOG2_E), splat(MAGIC))
    n = shifted - splat(MAGIC)
    f = fma(n, splat(-LN2_LOW), fma(n, splat(-LN2_HIGH), x))
    series = splat(1 / 5040)
    series = fma(series, f, splat(1 / 720))
    series = fma(series, f, splat(1 / 120))
    series = fma(series, f, splat(1 / 24))
    series = fma(series, f, splat(1 / 6))
    series = fma(series, f, splat(0.5))
    series = fma(series, f, splat(1.0))
    series = fma(series, f, splat(1.0))
    return zero_where_less(series * _power_of_two(shifted), x, splat(NEGLIGIBLE))


@inlined
def log_mantissa(m: Lanes) -> Lanes:
    """Return log m for sqrt(1/2) <= m < sqrt(2): 2 artanh s, s = (m-1)/(m+1), by its series to s^9 (error < 1e-9)."""
    s = (m - splat(1.0)) / (m + splat(1.0))
    square = s * s
    series = fma(splat(2 / 9), square, splat(2 / 7))
    series = fma(series, square, splat(2 / 5))
    series = fma(series, square, splat(2 / 3))
    series = fma(series, square, splat(2.0))
    return s * series


@inlined
def softplus(x: Lanes) -> Lanes:
    """Return log(1 + e^x) for x <= 0. NaN is not propagated; callers must do so."""
    y = splat(1.0) + exp(x)
    return fma(exponent(y), splat(LN2), log_mantissa(mantissa(y)))
