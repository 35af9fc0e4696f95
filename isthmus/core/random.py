"""All randomness of a course: streams that repeat an experiment, and streams that protect; never a global generator.

Those that only repeat are torch and numpy generators, named by seed, round, exchange, client and purpose: everybody who
knows the course can draw them. Those that protect (noise, what is hidden) are `ProtectingStream`s: who does not have
the client's `Secret` can neither draw nor guess them. Which clients take part in a round is drawn too (`Sampling`).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from isthmus.core.codec import encode
from isthmus.core.errors import refuse


def derive_seed(*parts: int | str) -> int:
    """Return 63 bits that depend on every part; the same on every machine and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def torch_generator(*parts: int | str) -> torch.Generator:
    """Return a torch generator for the stream named by `parts`."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def numpy_generator(*parts: int | str) -> np.random.Generator:
    """Return a numpy generator for the stream named by `parts`."""
    return np.random.default_rng(derive_seed(*parts))


@contextmanager
def seeded(*parts: int | str) -> Iterator[None]:
    """Run library code that only knows torch's global generator with a seed of ours, then restore it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(*parts))
        yield


SECRET_BYTES = 32
_WORD_BYTES = 8
_BITS = 52  # k + 1/2 with k of 52 bits is a float64 without rounding


class Secret:
    """32 bytes that one client has and nobody else. It is no record: it has no way into a message or a memory.

    A `simulated` one derives from the seed and protects from nobody. Its streams are named by their position alone, so
    that clients that answer together and alone agree within rounding.
    """

    __slots__ = ("_key", "simulated")

    def __init__(self, key: bytes, *, simulated: bool = False) -> None:
        if not isinstance(key, bytes) or len(key) != SECRET_BYTES:
            raise ValueError(f"a secret has {SECRET_BYTES} bytes")  # without what was found: it may be most of one
        self._key = key
        self.simulated = simulated

    @classmethod
    def of_simulation(cls, seed: int, client: str) -> Secret:
        """Return the secret that stands for a client's own in a simulation; whoever knows the seed knows it."""
        return cls(_derived(b"", "simulation", seed, client), simulated=True)

    def derive(self, *parts: int | str | bytes) -> Secret:
        """Return another secret, which tells nothing about this one: one for each course, for example."""
        return Secret(_derived(self._key, "secret", *parts), simulated=self.simulated)

    def stream(self, *parts: int | str | bytes) -> ProtectingStream:
        """Return the stream of this name; the same name gives the same stream from its start."""
        return ProtectingStream(_derived(self._key, "stream", *parts))

    def fingerprint(self) -> str:
        """Return a few letters by which its owner can tell two secrets apart; they say nothing about it."""
        return _derived(self._key, "fingerprint").hex()[:16]

    def __repr__(self) -> str:
        return "Secret(simulated)" if self.simulated else "Secret(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret stays where it is: it cannot be copied or pickled")


class ProtectingStream:
    """Draws that nobody can repeat without the secret, and no torch generator: SHAKE-128 of a key and a count."""

    __slots__ = ("_draws", "_key")

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes) or len(key) != SECRET_BYTES:
            raise ValueError(f"the key of a stream has {SECRET_BYTES} bytes")
        self._key = key
        self._draws = 0

    @classmethod
    def kept(cls, key: Tensor) -> ProtectingStream:
        """Return the stream whose key a client kept in its memory, from its start."""
        return cls(bytes(key.cpu().numpy().data))

    def to_keep(self) -> Tensor:
        """Return the key, (32,), uint8, for the client's own memory, which never leaves it."""
        return torch.from_numpy(np.frombuffer(self._key, np.uint8).copy())

    def __repr__(self) -> str:
        return "ProtectingStream(hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a protecting stream cannot be copied or pickled; keep its key in the client's memory")

    def take(self, number: int) -> bytes:
        """Return the next bytes."""
        self._draws += 1
        return hashlib.shake_128(self._key + self._draws.to_bytes(_WORD_BYTES, "little")).digest(number)

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Return numbers strictly between 0 and 1, float64: (k + 1/2) / 2^52 with k evenly drawn."""
        bits = self._words(math.prod(shape)) & ((1 << _BITS) - 1)
        return ((bits.double() + 0.5) * 2.0**-_BITS).view(tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Return N(0, 1) draws, float32, by Box and Muller."""
        number = math.prod(shape)
        pairs = self.uniform((2, (number + 1) // 2))
        radius, angle = (-2.0 * pairs[0].log()).sqrt(), 2.0 * math.pi * pairs[1]
        found = torch.cat([radius * angle.cos(), radius * angle.sin()])[:number]
        return found.float().view(tuple(shape))

    def laplace(self, shape: Sequence[int], scale: float) -> Tensor:
        """Return Laplace(0, scale) draws, float32; their variance is 2 scale^2."""
        words = self._words(math.prod(shape))
        size = -(((words & ((1 << _BITS) - 1)).double() + 0.5) * 2.0**-_BITS).log()
        signed = torch.where(words < 0, -size, size)  # the first bit is none of the 52
        return (scale * signed).float().view(tuple(shape))

    def integers(self, high: int, shape: Sequence[int]) -> Tensor:
        """Return numbers from 0 to high - 1, int64, each exactly as likely as any other."""
        if not 0 < high < 2**62:
            raise ValueError(f"high is {high!r}; it must be from 1 to 2^62 - 1")
        number, found = math.prod(shape), torch.empty(0, dtype=torch.int64)
        most = (2**63 // high) * high  # words beyond the last whole multiple are drawn again
        while len(found) < number:
            words = self._words(number - len(found)) & (2**63 - 1)
            found = torch.cat([found, words[words < most] if most < 2**63 else words])
        return (found % high).view(tuple(shape))

    def permutation(self, number: int) -> Tensor:
        """Return the numbers from 0 to number - 1 in a random order, int64."""
        return torch.argsort(self._words(number), stable=True)

    def seed(self) -> int:
        """Return 63 bits, for a torch generator whose seed stays in the client's own memory."""
        return int.from_bytes(self.take(_WORD_BYTES), "little") >> 1

    def _words(self, number: int) -> Tensor:
        raw = np.frombuffer(self.take(number * _WORD_BYTES), "<i8").astype(np.int64)
        return torch.from_numpy(raw)


def digest(value: Any) -> bytes:
    """Return 32 bytes that tell values apart which a record can hold."""
    return hashlib.blake2b(encode(value), digest_size=SECRET_BYTES).digest()


def _derived(key: bytes, kind: str, *parts: int | str | bytes) -> bytes:
    """Return 32 bytes by keyed BLAKE2b; parts are written with type and length, so that no two lists look alike."""
    state = hashlib.blake2b(key=key, digest_size=SECRET_BYTES, person=b"isthmus secret")
    for part in (kind, *parts):
        raw = part if isinstance(part, bytes) else str(part).encode()
        state.update(f"{type(part).__name__}:{len(raw)}:".encode() + raw)
    return state.digest()


# ---- cohorts


@dataclass(frozen=True)
class Sampling(ABC):
    """Draws the cohort of a round: `fraction` is the share of the clients that takes part, or is expected to."""

    # Whether who takes part is hidden from all but the server, where that has a secret; else the seed tells it.
    hides: ClassVar[bool] = False

    fraction: float = 1.0

    def __post_init__(self) -> None:
        refuse(not 0.0 < self.fraction <= 1.0, self, "fraction", "it must be in (0, 1]")

    @abstractmethod
    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round, in client order."""

    @abstractmethod
    def least(self, num_clients: int) -> int:
        """Return how many of so many clients take part in any round; 0 where a round may be of nobody."""

    def expected(self, num_clients: int) -> float:
        """Return how many of so many clients take part in the mean."""
        return self.fraction * num_clients


@dataclass(frozen=True)
class UniformSampling(Sampling):
    """A cohort of `fraction` of the clients, at least `num_min`, uniform without replacement, in client order."""

    num_min: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse(self.num_min < 1, self, "num_min", "it must be at least 1")

    def size(self, num_clients: int) -> int:
        """Return how many of so many clients take part in a round."""
        # ceil with a grain of tolerance: 0.3 of 10 clients is 3, not 4.
        return min(num_clients, max(self.num_min, math.ceil(self.fraction * num_clients - 1e-9)))

    def least(self, num_clients: int) -> int:
        """Return the size of every cohort."""
        return self.size(num_clients)

    def expected(self, num_clients: int) -> float:
        """Return the size of every cohort."""
        return float(self.size(num_clients))

    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round."""
        size = self.size(len(clients))
        if size == len(clients):
            return tuple(clients)
        chosen = rng.choice(len(clients), size=size, replace=False)
        return tuple(clients[i] for i in sorted(chosen.tolist()))


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Each client takes part with the probability `fraction`, whatever the others do; a round may be of nobody.

    What is known of differential privacy by drawing is about such draws: whether a client is in says nothing of others.
    It hides nothing from whoever knows the draw, so between sites that is made of the server's own secret.
    """

    hides: ClassVar[bool] = True

    def least(self, num_clients: int) -> int:
        """Return 0, unless all take part in every round."""
        return num_clients if self.fraction == 1.0 else 0

    def cohort(self, clients: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
        """Return the clients of one round."""
        drawn = rng.random(len(clients)) < self.fraction
        return tuple(client for client, chosen in zip(clients, drawn.tolist(), strict=True) if chosen)


SAMPLINGS: dict[str, type[Sampling]] = {"uniform": UniformSampling, "poisson": PoissonSampling}
