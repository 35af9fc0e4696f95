"""What a client holds back: a reply as numbers, and as words once it is known what they count for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus.core.errors import BadMessage
from isthmus.core.folds import weight_of
from isthmus.core.record import Record, State, leaves, with_leaves
from isthmus.privacy.secure_sum.fixed_point import beyond
from isthmus.privacy.secure_sum.layout import WEIGHT, Layout, refuse_own_names
from isthmus.privacy.secure_sum.masks import Words
from isthmus.privacy.secure_sum.rules import WIDE_BOUND, SumRules
from isthmus.privacy.secure_sum.stages import SendMasked


def hold(reply: Record, request: Record, rules: SumRules) -> tuple[State, Record]:
    """Return what is remembered of a reply, and the empty one that leaves in its place.

    A reply that cannot be added up is refused here, with the place: nobody else will see it. One of weight zero may
    hold any numbers.
    """
    refuse_own_names(reply, request)
    layout = Layout.of(reply)
    numbers, weight = layout.numbers(reply), weight_of(reply)
    if weight > 0.0:
        _refuse_large(reply, rules)
    told = layout.to_tell()
    memory: State = {
        "narrow": numbers.narrow,
        "wide": numbers.wide,
        "weight": weight,
        "form": (told.reply, told.shapes),
        "weighted": layout.weighted,
    }
    if rules.counts_holders:
        memory["sent"] = _sent(reply, request, layout)
    return memory, layout.outline


def _refuse_large(reply: Record, rules: SumRules) -> None:
    """Raise BadMessage where a number is larger than the words can hold."""
    for path, leaf in leaves(reply).items():
        if path == WEIGHT or leaf is None:
            continue
        narrow = isinstance(leaf, Tensor) and leaf.is_floating_point()
        bound = rules.clip if narrow else WIDE_BOUND
        odd = beyond(leaf if isinstance(leaf, Tensor) else torch.tensor([leaf], dtype=torch.float64), bound)
        if odd is not None:
            todo = "set a larger clip for the secure sum" if narrow else "it cannot be added up securely"
            raise BadMessage(f"{type(reply).__name__}{path} holds {odd:.3g}, which is beyond {bound:g}: {todo}")


def _sent(reply: Record, request: Record, layout: Layout) -> Tensor:
    """Return what was sent in the place of each floating-point number of a reply, and 0 where nothing was."""
    sent, back = leaves(request), leaves(reply)
    base = {}
    for path, leaf in back.items():
        before = sent.get(path)
        if isinstance(leaf, Tensor) and isinstance(before, Tensor) and before.shape == leaf.shape:
            base[path] = before.to(leaf.dtype)
        else:
            base[path] = torch.zeros_like(leaf) if isinstance(leaf, Tensor) else leaf
    return layout.numbers(with_leaves(reply, base)).narrow


def weight_in_units(weight: float, rules: SumRules, num_clients: int) -> int:
    """Return a weight in units of words that so many clients add up."""
    weights = rules.weights(num_clients)
    if not 2.0 * weight <= weights.bound / num_clients:
        raise BadMessage(f"the weight {weight:g} is beyond {weights.bound / num_clients / 2.0:g}")
    return round(weight / weights.unit)


def weight_bound(units: int) -> int:
    """Return the least power of two that is no less than a weight, 0 for none; in units as the weight."""
    return 1 << (units - 1).bit_length() if units else 0


def bound_words(held: State, rules: SumRules, num_clients: int) -> Words:
    """Return what bounds the weight, in words that so many clients add up."""
    bound = weight_bound(weight_in_units(held["weight"], rules, num_clients))
    return Words(np.empty(0, np.uint32), np.array([bound], np.uint64))


def holder_words(held: State, rules: SumRules, group: tuple[str, ...]) -> Words:
    """Return where this client has something of its own, and what bounds the weight, in words."""
    counted = (held["narrow"] != held["sent"]) & (held["weight"] > 0.0)
    return Words(counted.to(torch.uint8).numpy().astype(np.uint32), bound_words(held, rules, len(group)).wide)


def number_words(held: State, rules: SumRules, request: SendMasked) -> Words:
    """Return the numbers in words, each counted by this client's weight as a part of the total, and the weight."""
    number = len(request.group)
    units = weight_in_units(held["weight"], rules, number)
    share = share_of(units, request.total, number, held["weighted"], rules)
    narrow, wide = held["narrow"], held["wide"]
    if request.few.numel():
        if "sent" not in held or request.few.shape != narrow.shape or request.few.dtype != torch.bool:
            raise BadMessage("what too few clients hold is not told in the form of what is added up")
        narrow = torch.where(request.few, held["sent"], narrow)
    if not share:  # who weighs nothing may hold anything
        narrow, wide = torch.zeros_like(narrow), torch.zeros_like(wide)
    every = np.concatenate([rules.wide(number).words(wide, share), np.array([units], np.uint64)])
    return Words(rules.narrow(number).words(narrow, share), every)


def share_of(units: int, total: float, num_group: int, weighted: bool, rules: SumRules) -> float:
    """Return what part of the total a client's weight is; a refusal tells of what bounds the weight alone."""
    if not weighted:
        return 1.0 / num_group
    unit = rules.weights(num_group).unit
    bound = weight_bound(units) * unit
    if not bound <= total:  # not of NaN either
        raise BadMessage(f"what bounds all weights is said to be {total:g} in all, and this client's is {bound:g}")
    return units * unit / total if total > 0.0 else 0.0
