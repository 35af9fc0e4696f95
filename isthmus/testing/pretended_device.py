"""A device that is none: numbers lie in the computer's own memory, and tensors that claim to lie elsewhere.

Where there is no GPU, this shows what one would refuse: an operation on tensors of two devices, a random draw on the
device from a generator of the CPU's, a tensor of the device taken for a numpy array. Values are real, so that whole
courses run; and since it is the CPU that computes them, they end with the same bits as without the device.

    with pretended_device() as device:
        there = trace_course(replace(course, device=device), scenario)

What it cannot show: whether a kernel exists on a real device, how its sums are rounded, how fast it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"
# Take from one device to another.
_CROSSING = frozenset({"_to_copy", "copy_", "_copy_from"})
# Where even a tensor without dimensions must lie with the others; elsewhere one of the CPU's counts as a number.
_STRICT = ("cat", "stack", "index_select", "gather", "_foreach", "_fused")

_state: dict[str, Any] = {"registered": False, "doubles": True, "operations": 0}


class WrongDevice(RuntimeError):
    """What a real device would have refused."""


class PretendedTensor(Tensor):
    """A tensor that claims to lie on the device; `raw` has its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> PretendedTensor:
        """Return a tensor of the same shape and type, without memory of its own."""
        strided = raw.layout == torch.strided  # torch knows no other wrappers: `layout` tells what it wraps
        made: PretendedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride() if strided else None,
            storage_offset=raw.storage_offset() if strided else None,
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )
        return made

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{NAME}({self.raw!r})"

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """How the numbers are stored."""
        return self.raw.layout

    def crow_indices(self) -> Tensor:
        """Return where the rows of a sparse matrix begin."""
        return PretendedTensor(self.raw.crow_indices())

    def col_indices(self) -> Tensor:
        """Return the columns of the entries of a sparse matrix."""
        return PretendedTensor(self.raw.col_indices())

    def values(self) -> Tensor:
        """Return the entries of a sparse matrix."""
        return PretendedTensor(self.raw.values())

    def tolist(self) -> Any:
        """Return the numbers, as a real device does after it has waited for them."""
        return self.raw.tolist()

    def untyped_storage(self) -> Any:
        """Return the memory of the numbers: of it only the size means something."""
        return self.raw.untyped_storage()

    def numpy(self, *, force: bool = False) -> NoReturn:
        """Refuse, as every device but the CPU does."""
        raise WrongDevice(f"cannot convert a tensor of the device {NAME!r} to numpy; use Tensor.cpu() first")

    def __array__(self, *args: Any, **named: Any) -> NoReturn:
        self.numpy()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Carry out an operation in which such tensors take part."""
        return _carried_out(func, args, kwargs or {})


class _Factories(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Hears operations in which no tensor takes part, such as `torch.zeros(3, device=...)`."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _carried_out(func, args, kwargs or {})


@contextmanager
def pretended_device(doubles: bool = True) -> Iterator[str]:
    """Give the name of a device that exists as long as the context lasts; without `doubles` it has no float64 (MPS)."""
    _register()
    before, lifted = _state["doubles"], torch._C._only_lift_cpu_tensors()
    _state["doubles"] = doubles
    torch._C._set_only_lift_cpu_tensors(True)  # so that `torch.tensor(..., device=...)` is heard too
    try:
        with _Factories():  # type: ignore[no-untyped-call]
            yield f"{NAME}:0"
    finally:
        _state["doubles"] = before
        torch._C._set_only_lift_cpu_tensors(lifted)


def _register() -> None:
    """Make the device known to torch, which knows no way back; it must not have computed a gradient before."""
    if _state["registered"]:
        return
    _setup_privateuseone_for_python_backend(NAME)
    _state["registered"] = True
    try:
        torch.ones((), requires_grad=True).mul(PretendedTensor(torch.ones(()))).backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        raise RuntimeError(
            "torch prepares for its devices when it computes the first gradient of a process, which it has done; begin "
            "to pretend in a process of its own, before that"
        ) from None


def operations() -> int:
    """Return how many operations the device has carried out since the process began."""
    return int(_state["operations"])


def _carried_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what an operation gives; raise where a device would."""
    name = func._overloadpacket.__name__
    given = tree_leaves((args, kwargs))
    here = [each for each in given if isinstance(each, PretendedTensor)]
    asked = kwargs.get("device")
    onto = bool(here) if asked is None else torch.device(asked).type == NAME
    if name not in _CROSSING:
        _require_one_device(func, name, given, onto)
    raw_args, raw_kwargs = tree_map(_raw, (args, kwargs))
    if asked is not None and onto:
        raw_kwargs["device"] = torch.device("cpu")
    found = func(*raw_args, **raw_kwargs)
    if func._schema.is_mutable:
        return _written(func, args, kwargs, found)
    return tree_map(_wrapped(func), found) if onto else found


def _require_one_device(func: Any, name: str, given: list[Any], onto: bool) -> None:
    if not onto:
        if any(isinstance(each, PretendedTensor) for each in given):
            raise WrongDevice(f"{func}: a result on the CPU of tensors on {NAME!r}")
        return
    least = 0 if name.startswith(_STRICT) else 1
    elsewhere = [
        each
        for each in given
        if isinstance(each, Tensor) and not isinstance(each, PretendedTensor) and each.ndim >= least
    ]
    if elsewhere:
        shapes = ", ".join(str(tuple(each.shape)) for each in elsewhere)
        raise WrongDevice(f"{func}: expected all tensors on {NAME!r}, found some of the shapes {shapes} on the CPU")
    if any(isinstance(each, torch.Generator) for each in given):
        raise WrongDevice(f"{func}: a draw on {NAME!r} from a generator of the CPU's")


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, PretendedTensor) else value


def _wrapped(func: Any) -> Callable[[Any], Any]:
    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.dtype == torch.float64 and not _state["doubles"]:
            raise WrongDevice(f"{func}: the device has no numbers of double precision")
        _state["operations"] += 1
        return PretendedTensor(value)

    return wrap


def _written(func: Any, args: Any, kwargs: dict[str, Any], found: Any) -> Any:
    """Return what an operation that writes into its arguments returns: those it wrote into."""
    _state["operations"] += 1
    named = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    written = [named[each.name] for each in func._schema.arguments if each.is_write and each.name in named]
    if not isinstance(found, tuple | list):
        return written[0] if isinstance(found, Tensor) else found
    return tuple(written) if len(written) == len(found) else found
