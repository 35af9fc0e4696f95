"""What server and clients both know: which tensors of a message are parameters, and what each client has of them.

A state of a tensor has a tag: where it stands, and all that crossed since it was sent whole. Both sides make it by
themselves, so that a tensor coded against another state than the client has is seen at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isthmus.core.codec import MAX_KEY
from isthmus.core.protocol import reply_type
from isthmus.core.record import Params, Record, State, args_of, field_types, leaves, with_leaves
from isthmus.privacy.compression.blob import TAG_BYTES, Form, raw_bytes

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Book:
    """What the server knows of what clients have: tensors by tag, and each client's tags by field and name.

    `meanings` has, by the tag of a state, the tag of the tensor that it stands for.
    """

    def __init__(self, memory: State) -> None:
        self.held: dict[bytes, Tensor] = {bytes.fromhex(tag): tensor for tag, tensor in memory.get("held", {}).items()}
        self.who: dict[str, dict[str, bytes]] = {
            client: {entry: bytes.fromhex(tag) for entry, tag in tags.items()}
            for client, tags in memory.get("who", {}).items()
        }
        self.meanings: dict[str, str] = dict(memory.get("meanings", {}))

    def tags(self, client: str) -> dict[str, bytes]:
        """Return the tags of what a client has."""
        return self.who.get(client, {})

    def meaning(self, tag: bytes) -> bytes:
        """Return the tag that the tensor would have which this state stands for, had all of it been sent."""
        found = self.meanings.get(tag.hex())
        return tag if found is None else bytes.fromhex(found)

    def take(self, client: str, tags: Mapping[str, bytes], params: Params) -> None:
        """Take note of what a client has now."""
        self.who[client] = {**self.tags(client), **tags}
        self.held |= {tags[entry]: tensor for path, tensor in params.items() if (entry := entry_of(path)) in tags}

    def kept(self) -> State:
        """Return it as a memory, without what no client has any more."""
        live = {tag for tags in self.who.values() for tag in tags.values()}
        who = {client: {entry: tag.hex() for entry, tag in tags.items()} for client, tags in self.who.items()}
        held = {tag.hex(): tensor for tag, tensor in self.held.items() if tag in live}
        return {"held": held, "who": who, "meanings": {tag: self.meanings[tag] for tag in held if tag in self.meanings}}


def params_of(record: Record, smallest: int = 1, wires: bool = False) -> Params:
    """Return the floats of a message that have a name in a dict, by place; with `wires` bytes in their place, too."""
    found = {path: leaf for path, leaf in leaves(record).items() if isinstance(leaf, Tensor) and _is_entry(path)}
    return {path: leaf for path, leaf in found.items() if _is_floats(leaf, smallest) or (wires and _is_bytes(leaf))}


def _is_entry(path: str) -> bool:
    return path.endswith(("']", '"]'))


def _is_floats(leaf: Tensor, smallest: int) -> bool:
    return leaf.dtype in _FLOATS and leaf.numel() >= smallest


def _is_bytes(leaf: Tensor) -> bool:
    return leaf.dtype == torch.uint8 and leaf.dim() == 1


def base_of(path: str, known: Params) -> Tensor | None:
    """Return what a reply's tensor is a change of: the request's own, or zeros where another field has its name."""
    if path in known:
        return known[path]
    name = path[path.rfind("[") :]
    other = next((tensor for place, tensor in known.items() if place.endswith(name)), None)
    return None if other is None else torch.zeros_like(other)


def same_objects(first: Params, second: Params) -> bool:
    """Whether parameters are the same tensors, not only equal ones."""
    return first.keys() == second.keys() and all(second[name] is tensor for name, tensor in first.items())


def owes_tensors(kind: Any) -> bool:
    """Whether replies to a kind of request hold tensors."""
    return _holds_tensors(reply_type(kind), frozenset())


def _holds_tensors(annotation: Any, within: frozenset[Any]) -> bool:
    if annotation in (Tensor, Any):
        return True
    inner = args_of(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Record) and annotation not in within:
        inner = tuple(field_types(annotation).values())
    return any(_holds_tensors(part, within | {annotation}) for part in inner)


def filled(memory: State) -> State:
    """Return a memory without what is empty."""
    return {name: entry for name, entry in memory.items() if entry}


def changed_by(record: Any, changed: Mapping[str, Tensor]) -> Any:
    """Return a record with some of its leaves changed."""
    if not changed:
        return record
    return with_leaves(record, {**leaves(record), **changed})


def tag_of(entry: str, before: bytes, wire: Tensor) -> bytes:
    """Return what tells apart the states of a tensor: where it stands, and all that crossed since it was sent whole."""
    state = hashlib.blake2b(f"{entry}\0{Form.of(wire)}\0".encode() + before, digest_size=TAG_BYTES)
    state.update(raw_bytes(wire))
    return state.digest()


def entry_of(path: str) -> str:
    """Return a place as the key of a memory, which has a limit."""
    return path if len(path) <= MAX_KEY else hashlib.blake2b(path.encode(), digest_size=32).hexdigest()
