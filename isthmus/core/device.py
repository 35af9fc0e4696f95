"""Where a client computes: the devices of this machine, and how values get there and back.

All that a client has in its hands lies on its device: its data, its model, its memory, what it is asked. All that
crosses lies in the computer's own memory, and so does all that the server has. What is random is drawn in the
computer's own memory and then moved, so that it is the same wherever it is used.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.core.record import LazyParams, Record, Value, fields_of

CPU = torch.device("cpu")
AUTO = "auto"


def device_problem(name: str) -> str:
    """Return what is wrong with the name of a device, whether this machine has it or not; empty where nothing is."""
    wanted = "choose from auto, cpu, cuda, cuda:0 (or :1, :2, ... for another GPU), mps"
    if name == AUTO:
        return ""
    try:
        known = torch.device(name)
    except (RuntimeError, TypeError):
        return wanted
    # Besides the devices that torch knows itself, one that somebody has added to it.
    if known.type not in ("cpu", "cuda", "mps", torch._C._get_privateuse1_backend_name()):
        return wanted
    return "" if known.type != "cpu" or known.index is None else "there is one CPU: write cpu"


def device_of(name: str, where: str = "device") -> torch.device:
    """Return the device of a name; one that this machine does not have raises BadInput, and "auto" takes the best."""
    problem = device_problem(name)
    if problem:
        raise BadInput(f"{where} is {name!r}; {problem}")
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    device = torch.device(name)
    lack = _lack(device)
    if lack:
        raise BadInput(f"{where} is {name!r}, but {lack}; use {where}=cpu, or {where}=auto, which takes what there is")
    return device


def _lack(device: torch.device) -> str:
    """Return why a device is not there; empty where it is."""
    if device.type == "cpu":
        return ""
    if device.type == "mps":
        return "" if _has_mps() else "this machine has no GPU that torch can use by Metal (mps)"
    module = torch.get_device_module(device.type)
    if not module.is_available():
        return f"torch finds no {device.type} device on this machine"
    number = module.device_count()
    if device.index is not None and device.index >= number:
        return f"this machine has {number} {device.type} device{'s' * (number != 1)}, counted from 0"
    return ""


def _has_mps() -> bool:
    return bool(torch.backends.mps.is_available())


def has_doubles(device: torch.device) -> bool:
    """Whether a device has numbers of double precision, in which the sums of a stack run."""
    return device.type != "mps"


def moved(value: Value, device: torch.device, known: dict[int, Any] | None = None) -> Any:
    """Return a value with its tensors on a device: itself, where they lie there already.

    What is there several times, also in values moved with the same `known`, stays one. A part of a stack is made when
    it leaves for the CPU.
    """
    known = {} if known is None else known
    if isinstance(value, Tensor | Record | dict | tuple):
        if id(value) not in known:
            known[id(value)] = _moved(value, device, known)
        return known[id(value)]
    return value


def _moved(value: Value, device: torch.device, known: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, LazyParams):
        return {name: tensor.to(device) for name, tensor in value.items()} if device == CPU else value
    parts = _parts(value)
    changed = {name: new for name, item in parts.items() if (new := moved(item, device, known)) is not item}
    if not changed:
        return value
    if isinstance(value, Record):
        return dataclasses.replace(value, **changed)
    return {**parts, **changed} if isinstance(value, dict) else tuple({**parts, **changed}.values())


def _parts(value: Value) -> dict[Any, Value]:
    if isinstance(value, Record):
        return {**fields_of(value)}
    return value if isinstance(value, dict) else dict(enumerate(value))
