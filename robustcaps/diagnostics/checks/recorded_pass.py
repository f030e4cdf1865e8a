"""A forward pass recorded operation by operation, below autograd, and run again with gradients of our own.

Autograd only knows what a model tells it: `detach`, `no_grad`, hooks and custom backward functions cut or replace
gradients. The operations themselves cannot hide: whatever computes the outputs passes torch's dispatcher. Running them
again differentiates each by its own derivative (the chain rule), or, where an operation is a step, by a substitute
(backward pass differentiable approximation, Athalye et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from robustcaps.capsules.kernels.fused import observing_kernels

Substitution = Literal["none", "steps", "assignments"]
"""What is differentiated otherwise: nothing; steps (rounding, signs, comparisons), by a substitute; the same, with the
outputs of softmax and exp, such as routing assignments, held constant."""

aten = torch.ops.aten
SOFTMAX, CONVERSION = aten._softmax, aten._to_copy  # noqa: SLF001  names of operations, public in the dispatcher
IDENTITIES = {aten.detach, aten.detach_, aten.alias, aten.lift_fresh}
"""Operations that return their input, whether or not autograd stops there."""
ROUNDINGS = {aten.round, aten.round_, aten.floor, aten.floor_, aten.ceil, aten.ceil_, aten.trunc, aten.trunc_}
SIGNS = {aten.sign, aten.sign_, aten.sgn}
COMPARISONS = {aten.ge: 1.0, aten.gt: 1.0, aten.le: -1.0, aten.lt: -1.0}
"""Comparisons, and the sign of a - b where they hold."""
STEPS = ROUNDINGS | SIGNS | set(COMPARISONS)
ASSIGNMENTS = {SOFTMAX, aten.exp}
SINGULAR = {aten.sqrt, aten.rsqrt, aten.log, aten.div, aten.reciprocal, aten.pow, aten.linalg_vector_norm}
"""Operations whose derivative may be infinite; what is not finite in it counts as 0."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of an operation; tensors in its arguments and results are those of the recorded pass."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    drawn: Tensor | None = None
    """A copy of the result, if it is random."""


@dataclass(frozen=True)
class KernelCall:
    """A fused kernel in the form of an operation of torch."""

    kernel: Callable[..., Any]
    overloadpacket: None = None

    def __call__(self, *tensors: Tensor) -> Any:
        """Run the kernel, whose gradient is its own."""
        return self.kernel(*tensors)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records all operations on tensors inside the context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.written: dict[int, Tensor] = {}
        """Copies of tensors from before the pass that an operation overwrites, by id."""
        self._produced: set[int] = set()

    def run_kernel(self, kernel: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Any:
        """Run and record a fused routing kernel, which computes outside of torch, as a single operation."""
        results = kernel(*tensors)
        self.operations.append(Operation(KernelCall(kernel), tensors, {}, results))
        return results

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and record it."""
        kwargs = kwargs or {}
        for tensor in _overwritten(func, args, kwargs):
            if id(tensor) not in self._produced and id(tensor) not in self.written:
                self.written[id(tensor)] = tensor.clone()
        results = func(*args, **kwargs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags and isinstance(results, Tensor)
        drawn = results.clone() if is_random else None
        self.operations.append(Operation(func, args, kwargs, results, drawn))
        self._produced.update(id(each) for each in tree_flatten(results)[0] if isinstance(each, Tensor))
        return results


def _is_in_place(func: Any) -> bool:
    """Return whether an operation writes to one of its arguments."""
    return bool(func._schema.is_mutable)  # noqa: SLF001  the only description of arguments


def _overwritten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the arguments that an operation writes to."""
    if not _is_in_place(func):
        return []
    found = []
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001  the only description of arguments
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [each for each in tree_flatten(value)[0] if isinstance(each, Tensor)]
    return found


@dataclass(frozen=True, eq=False)
class RecordedPass:
    """The operations that led from images to outputs."""

    operations: list[Operation]
    written: dict[int, Tensor]
    images: Tensor
    outputs: Tensor

    @classmethod
    def record(cls, model: Callable[[Tensor], Tensor], images: Tensor) -> RecordedPass:
        """Record a pass of a model without gradients."""
        images = images.detach().clone()
        recorder = Recorder()
        with torch.no_grad(), recorder, observing_kernels(recorder.run_kernel):
            outputs = model(images)
        return cls(recorder.operations, recorder.written, images, outputs)

    @property
    def has_steps(self) -> bool:
        """Whether any operation is a step, whose derivative is zero."""
        return any(operation.function.overloadpacket in STEPS for operation in self.operations)

    @property
    def nbytes(self) -> int:
        """Memory of all intermediate results."""
        results = (tree_flatten(operation.results)[0] for operation in self.operations)
        return sum(each.nbytes for part in results for each in part if isinstance(each, Tensor))

    def gradient(self, output_gradient: Tensor, substitution: Substitution) -> Tensor:
        """Return the gradient of <outputs, output_gradient> in the images, 0 if no operation links the two."""
        source = self.images.clone().requires_grad_()
        with torch.enable_grad():
            outputs = _Replay(self, source.clone(), substitution).run()
            if not outputs.requires_grad:
                return torch.zeros_like(source)
            (gradient,) = torch.autograd.grad(outputs, source, output_gradient.to(outputs), allow_unused=True)
        return torch.zeros_like(source) if gradient is None else gradient


class _Replay:
    """The tensors of a pass that is run again, by the id of those recorded."""

    def __init__(self, recorded: RecordedPass, source: Tensor, substitution: Substitution) -> None:
        self.recorded, self.source, self.substitution = recorded, source, substitution
        self.values: dict[int, Tensor] = {id(recorded.images): source}
        self.values |= {key: value.clone() for key, value in recorded.written.items() if key != id(recorded.images)}
        self.substitutes: dict[int, Tensor] = {}
        """Differentiable substitutes of integers and booleans."""

    def run(self) -> Tensor:
        """Return the outputs with their graph."""
        for operation in self.recorded.operations:
            results = self._run_operation(operation)
            for old, new in zip(*(tree_flatten(each)[0] for each in (operation.results, results)), strict=True):
                if isinstance(old, Tensor):
                    self.values[id(old)] = new
        outputs: Tensor = self._value(self.recorded.outputs)
        return outputs

    def _value(self, recorded: Any) -> Any:
        """Return the new value of a recorded argument."""
        if not isinstance(recorded, Tensor):
            return recorded
        if id(recorded) in self.values:
            return self.values[id(recorded)]
        value = recorded.detach().clone() if recorded.is_inference() else recorded.detach()
        if value.shape == self.source.shape and value.is_floating_point() and len(value) > 1:
            # came from outside of torch with the shape of the images: a preprocessing of them
            value = value + (self.source - self.source.detach())
        self.values[id(recorded)] = value
        return value

    def _run_operation(self, operation: Operation) -> Any:
        packet = operation.function.overloadpacket
        args, kwargs = (tree_map(self._value, each) for each in (operation.args, operation.kwargs))
        if packet in IDENTITIES:
            return args[0]
        if args and id(operation.args[0]) in self.recorded.written and not args[0].requires_grad:
            args = (args[0].clone(), *args[1:])  # the state of a model, which its gradient needs as it was
        if operation.drawn is not None:
            return self._repeat_draw(operation, args)
        if self.substitution == "none":
            return operation.function(*args, **kwargs)
        if packet in STEPS and isinstance(args[0], Tensor) and args[0].is_floating_point():
            return self._run_step(operation, args, kwargs)
        if packet is CONVERSION or packet is aten.where or packet is aten.mul:
            return self._run_conversion(operation, args, kwargs)
        if packet in SINGULAR:
            args = tuple(map(_with_finite_gradient, args))
        results = operation.function(*args, **kwargs)
        is_held = self.substitution == "assignments" and packet in ASSIGNMENTS
        return results.detach() if is_held else results

    @staticmethod
    def _repeat_draw(operation: Operation, args: tuple[Any, ...]) -> Tensor:
        """Return the random numbers of the recorded pass; those drawn in place are written in place."""
        drawn: Tensor = operation.drawn.clone()  # type: ignore[union-attr]
        if _is_in_place(operation.function) and isinstance(args[0], Tensor):
            return args[0].copy_(drawn)
        return drawn

    def _run_step(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Run a step whose backward pass is that of a line (rounding) or of a smooth step of the inputs' scale."""
        packet, x = operation.function.overloadpacket, args[0]
        before = x.clone() if _is_in_place(operation.function) else x
        result: Tensor = operation.function(*args, **kwargs)
        if packet in ROUNDINGS:
            return _with_gradient_of(result, before)
        if packet in SIGNS:
            return _with_gradient_of(result, torch.tanh(before / _scale(before)))
        difference = COMPARISONS[packet] * (before - args[1])
        self.substitutes[id(operation.results)] = torch.sigmoid(2.0 * difference / _scale(difference))
        return result

    def _run_conversion(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Run a conversion between floats and integers or booleans, a choice, or a product with a mask."""
        result: Tensor = operation.function(*args, **kwargs)
        tensors = [each for each in operation.args if isinstance(each, Tensor)]
        known = [each for each in tensors if id(each) in self.substitutes]
        packet = operation.function.overloadpacket
        if packet is CONVERSION:
            if known and result.is_floating_point():
                return _with_gradient_of(result, self.substitutes[id(known[0])])
            if args[0].is_floating_point() and not result.is_floating_point():
                self.substitutes[id(operation.results)] = args[0]
        elif known and packet is aten.where and len(args) == 3:
            return _with_gradient_of(result, self.substitutes[id(known[0])] * _constant(args[1] - args[2]), adds=True)
        elif known and packet is aten.mul and result.is_floating_point():
            other = args[1] if operation.args[0] is known[0] else args[0]
            return _with_gradient_of(result, self.substitutes[id(known[0])] * _constant(other), adds=True)
        return result


def _with_finite_gradient(x: Any) -> Any:
    """Return a tensor whose gradient is 0 where it would not be finite; return anything else unchanged."""
    if not (isinstance(x, Tensor) and x.requires_grad):
        return x
    copy = x.view_as(x)
    copy.register_hook(lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0))  # type: ignore[no-untyped-call]
    return copy


def _constant(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _scale(x: Tensor) -> Tensor:
    """Return the mean absolute value, at least the smallest number whose reciprocal is finite."""
    return x.detach().abs().mean().clamp_min(1e-30)


def _with_gradient_of(value: Tensor, substitute: Tensor, *, adds: bool = False) -> Tensor:
    """Return a value with the gradient of a substitute, instead of its own or (`adds`) in addition to it."""
    base = value if adds else value.detach()
    return base + (substitute - substitute.detach()).to(base)
