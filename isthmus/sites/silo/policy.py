"""A silo's own policy: which courses it takes part in, whatever the server says."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from isthmus.config.build import Builder, name_of
from isthmus.config.course import Course
from isthmus.config.load import clients_with_own_models, own_algorithm, own_batching, own_model, weaker
from isthmus.config.registry import FAMILIES, find_part, known_names
from isthmus.core.errors import BadInput, IsthmusError, nearest
from isthmus.core.exposure import exposure
from isthmus.core.outside import read_yaml
from isthmus.core.protocol import Algorithm, EvaluateModel
from isthmus.data.conventions import SPLITS
from isthmus.runtime.reasons import Refusal
from isthmus.sites.silo.required import Bounds, check_required, problems_of_guards, sums, told

# Fewer examples than this in a training set can be told from a trained model, even from a mean of models.
FEW_EXAMPLES = 10
# Layers, hops and the like: each costs work in Python before any size is known.
MAX_DEPTH_SETTING = 1_000
# Of the models of all clients together, each of which is built at a silo if only to know its parameters' names.
MAX_DEPTH_OF_ALL = 4 * MAX_DEPTH_SETTING
_DEEP = ("layers", "encoder_layers", "base_layers", "hops", "heads", "last_heads", "steps")
_STEPS = ("steps", "epochs", "rounds", "max_iter", "max_exponent")
MAX_SITES = 10_000


@dataclass(frozen=True)
class Policy:
    """What a silo allows. Without a policy file the bounds below hold too, and any installed algorithm may run.

    What `min_sites` means: that many distinct sites are in the course and in every cohort, the course goes on with no
    fewer replies, and, where the silo can check certificates, that many distinct certified silos signed this very
    course. What no policy can see is what the server does with the replies: a dishonest one can leave others out of
    the mean, or look at each reply. Only a secure sum prevents that. `only_folded` binds the algorithm in the same way.

    Fields:
        algorithms:          names of the algorithms that may run here; null allows all that are installed
        min_sites:           with fewer sites in the course, in a round, or in a mean, the silo stays away
        only_folded:         whether the algorithm must look at nothing of a client's replies but their fold (metrics
                             excepted)
        min_examples:        a course is refused in which this silo would have fewer examples, but some, for training,
                             validation or test, or in a batch; null: 10 where `only_folded` or `min_sites` promise
                             that nobody stands alone, else 1
        own_settings:        whether a course may have other settings of the algorithm for single clients: with a step
                             of 0 for all others, a mean is one client's; null: only where no fold is promised
        protections:         least protection by algorithm and field, such as {fedgnn: {noise: 0.2, clip: 0.1}}
        required_guards:     guards that a course must have, each with bounds on its fields, such as
                             {client_dp: {mode: local, epsilon: 4}}: as much or what protects more
        tell_reasons:        whether the server is told in full why this silo refuses or fails, with rows, values and
                             paths; else only the kind crosses. For federations that only try things out
        share_columns:       whether the server is told what this silo's feature columns are called when another silo's
                             have other names, so that that one learns which; it always gets a digest of the names
        private_matching:    whether this silo's ids go round the others, blinded, in a course with
                             dataset.match_ids=private, and theirs come by here
        max_rounds:          rounds of a course
        max_trials:          courses of one study (isthmus tune --federation); what the server does not call a study
                             are courses like any other
        max_steps:           steps or epochs that an algorithm takes in one answer
        max_parameters:      numbers in a model
        max_message_bytes:   a larger message is refused
        max_request_seconds: an answer that takes longer is given up
        keep_courses:        of how many courses that did not end their memories are kept
        keep_days:           and for how long after they were last used
        keep_models:         how many models of courses that ended are kept
    """

    algorithms: tuple[str, ...] | None = None
    min_sites: int = 1
    only_folded: bool = False
    min_examples: int | None = None
    own_settings: bool | None = None
    protections: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    required_guards: Mapping[str, Bounds] = field(default_factory=dict)
    tell_reasons: bool = False
    share_columns: bool = True
    private_matching: bool = True
    max_rounds: int = 10_000
    max_trials: int = 1_000
    max_steps: int = 10_000
    max_parameters: int = 50_000_000
    max_message_bytes: int = 2**29
    max_request_seconds: float = 900.0
    keep_courses: int = 10
    keep_days: float = 30.0
    keep_models: int = 20

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.startswith(("min_", "max_", "keep_")) and value is not None and not value > 0:
                raise ValueError(f"{name} is {value!r}; it must be positive")
        known = known_names(FAMILIES[Algorithm])
        for name in (*(self.algorithms or ()), *self.protections):
            if name not in known:
                raise ValueError(f"there is no algorithm {name[:60]!r}; {nearest(name, known)}")
        self._check_protections()
        check_required(self.required_guards)

    def _check_protections(self) -> None:
        for name, least in self.protections.items():
            kind: type[Algorithm[Any]] = find_part(FAMILIES[Algorithm], name, "protections", allow_import=False)
            strange = [key for key in least if key not in kind.protects]
            if strange:
                raise ValueError(f"protections.{name} has {strange[0]!r}; {nearest(strange[0], kind.protects)}")

    @property
    def promises_folds(self) -> bool:
        """Whether this policy is about not standing alone."""
        return self.sees_only_folds or self.min_sites > 1

    @property
    def sees_only_folds(self) -> bool:
        """Whether the server must look at nothing but folds: a sum that hides replies hides no others."""
        return self.only_folded or sums(self.required_guards)

    @property
    def fewest_examples(self) -> int:
        """What `min_examples` comes to."""
        return self.min_examples or (FEW_EXAMPLES if self.promises_folds else 1)

    def lines(self) -> list[str]:
        """Return in a few lines what this policy amounts to, for the silo's own people."""
        who = "any installed algorithm" if self.algorithms is None else f"only {', '.join(self.algorithms)}"
        single = "single replies too, where the algorithm has some"
        what = "only what the server folds" if self.sees_only_folds else single
        guards = [told(name, bounds) for name, bounds in self.required_guards.items()]
        return [
            f"policy: {who}; {self.min_sites} sites at least; the server may ask for {what}",
            f"        {self.fewest_examples} examples at least, {self.max_rounds} rounds, {self.max_steps} steps, "
            f"{self.max_parameters} parameters, {self.max_message_bytes} bytes a message, "
            f"{self.max_request_seconds:g} s an answer, {self.max_trials} courses of a study at most",
            *([f"        a course must have the guards {', '.join(guards)}"] if guards else []),
        ]

    # ---- before the data is looked at

    def refusal(self, course: Course, sites: tuple[str, ...]) -> str:
        """Return why this silo stays away from a course, or nothing."""
        reasons = [
            self._of_algorithm(course),
            self._of_sites(course, sites),
            self._of_replies(course),
            self._of_ids(course),
        ]
        # Each is looked for only where the ones before it found nothing: sizes may be looked at by now.
        return next(itertools.chain(*reasons, self._of_settings(course), self._of_sizes(course)), "")

    def _of_algorithm(self, course: Course) -> Iterator[str]:
        name = name_of(type(course.algorithm))
        if self.algorithms is not None and name not in self.algorithms:
            yield f"its policy allows the algorithms {', '.join(self.algorithms)}, not {name}"
        if course.algorithm.pooled:
            yield f"{name} needs the whole graph in one place, and this silo's graph stays here"
        yield from problems_of_guards(self.required_guards, course.guards)

    def _of_sites(self, course: Course, sites: tuple[str, ...]) -> Iterator[str]:
        asks = f"its policy asks for {self.min_sites} sites at least"
        if len(sites) > MAX_SITES:
            yield f"the course has {len(sites)} sites, more than {MAX_SITES}"
        twice = next((site for site, number in Counter(sites).items() if number > 1), None)
        if twice is not None:
            yield f"the course has the site {twice[:40]!r} twice"
        if len(sites) < self.min_sites:
            yield f"{asks}; this course has {len(sites)}"
        if course.min_replies < self.min_sites:
            yield f"{asks}; this course goes on with min_replies={course.min_replies}"
        cohort = course.sampling.least(len(sites))
        if cohort < self.min_sites:
            found = f"has {cohort}" if cohort else "may have nobody"
            yield f"{asks}; with sampling.fraction={course.sampling.fraction:g} a round of this course {found}"

    def _of_ids(self, course: Course) -> Iterator[str]:
        if getattr(course.dataset, "match_ids", "") == "private" and not self.private_matching:
            yield "the course matches ids privately, and its policy says private_matching: false"

    def _of_replies(self, course: Course) -> Iterator[str]:
        name = name_of(type(course.algorithm))
        for exchange in exposure(type(course.algorithm)) if self.sees_only_folds else ():
            if exchange.server_sees == "each client's" and exchange.request != EvaluateModel.__name__:
                seen = exchange.request
                yield f"its policy lets the server see only folds; {name} shows it each client's reply to {seen}"
        allowed = not self.promises_folds if self.own_settings is None else self.own_settings
        for client in () if allowed else course.client_settings:
            yield (
                f"the course has other settings for {client[:40]!r}, by which a mean can become one client's; its "
                "policy allows that only with own_settings: true"
            )

    def _of_settings(self, course: Course) -> Iterator[str]:
        batch, name = smallest_batch(course), name_of(type(course.algorithm))
        if batch is not None and batch < self.fewest_examples:
            yield f"a batch of the course has {batch} examples, its policy asks for {self.fewest_examples} at least"
        for key, value in self.protections.get(name, {}).items():
            found = getattr(course.algorithm, key)
            if weaker(course.algorithm, key, found, value):
                yield f"its policy asks for {name}.{key} of {value:g} or what protects more; the course has {found!r}"

    def _of_sizes(self, course: Course) -> Iterator[str]:
        if course.rounds > self.max_rounds:
            yield f"the course has {course.rounds} rounds, its policy allows {self.max_rounds}"
        for where, algorithm in algorithms_of(course):
            key, steps = largest_steps(algorithm)
            if steps > self.max_steps:
                yield f"{where}.{key} is {steps}, its policy allows {self.max_steps}"
        for guard in course.guards:
            asked = 0 if guard.private_steps is None else guard.private_steps.most
            if asked > self.max_steps:
                yield f"steps of the guard {name_of(type(guard))} is {asked}, its policy allows {self.max_steps}"
        yield from problems_of_sizes(course, self.max_parameters)

    def refusal_of_trial(self, before: int) -> str:
        """Return why this silo stays away from one more course of a study with so many before, or nothing."""
        if before < self.max_trials:
            return ""
        return f"it has taken part in {before} courses of this study, its policy allows {self.max_trials} (max_trials)"

    # ---- when the data is at hand

    def require(self, course: Course, counts: Mapping[str, int], input_dim: int, output_dim: int, client: str) -> None:
        """Refuse what the course makes of this silo's data, where this policy forbids it; no model is built."""
        refusal = self.refusal_of_data(counts)
        whose = {None, client, *clients_with_own_models(course)}  # all are built here, if only to know their names
        number = max(num_parameters(course, input_dim, output_dim, each) for each in whose)
        if not refusal and number > self.max_parameters:
            refusal = f"the model of the course has {number} parameters, its policy allows {self.max_parameters}"
        if refusal:
            raise Refusal("policy", refusal)

    def refusal_of_data(self, counts: Mapping[str, int]) -> str:
        """Return why this silo stays away when it would have so many examples in each split, or nothing."""
        few = [split for split in SPLITS if 0 < counts.get(split, 0) < self.fewest_examples]
        if few:
            return (
                f"it would have fewer than {self.fewest_examples} examples for {few[0]} by this course, the least of "
                "its policy (min_examples)"
            )
        return ""


def load_policy(path: Path | None) -> Policy:
    """Read a policy file; without one, the defaults hold."""
    if path is None:
        return Policy()
    policy = Builder(str(path)).fields(Policy, read_yaml(path), "")
    assert isinstance(policy, Policy)
    return policy


def numbers(part: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield every whole number in the fields of a part, with its name, those of nested parts too."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        name = f"{prefix}{each.name}"
        for inner in value if isinstance(value, tuple) else (value,):
            if type(inner) is int:
                yield name, inner
            else:
                yield from numbers(inner, f"{name}.")


def largest_steps(algorithm: Any) -> tuple[str, int]:
    """Return the largest number of steps in an algorithm's fields, and the field's name."""
    found = [(name, n) for name, n in numbers(algorithm) if name.rsplit(".", 1)[-1].endswith(_STEPS)]
    # A schedule's rounds say when a rate changes, not how much is done.
    found = [(name, n) for name, n in found if ".schedule." not in name]
    found.append(algorithm.nested_steps)
    return max(found, key=lambda pair: pair[1], default=("", 0))


def smallest_batch(course: Course) -> int | None:
    """Return the smallest batch that some client makes; None where all batches are full."""
    parts: list[Any] = [course.batching, course.algorithm]
    for client in course.client_settings:
        with suppress(BadInput):  # batches that cannot be are told when they are made
            parts.append(own_batching(course, client, allow_import=False))
    sizes = [size for part in parts if type(size := getattr(part, "batch_size", None)) is int]
    return min(sizes, default=None)


def algorithms_of(course: Course) -> Iterator[tuple[str, Any]]:
    """Yield the course's algorithm, and those of clients that have settings of their own, each with where it stands."""
    yield "algorithm", course.algorithm
    for client in course.client_settings:
        own = own_algorithm(course, client, allow_import=False)
        if own is not None:
            yield f"client_settings.{client[:40]}", own


def problems_of_sizes(course: Course, most: int) -> Iterator[str]:
    """Yield which settings of models, batchings, task or algorithms are beyond all bounds."""
    depth, clients = 0, tuple(course.client_settings)
    models = [("model", own_model(course, client, allow_import=False)) for client in (None, *clients)]
    batchings = [("batching", own_batching(course, client, allow_import=False)) for client in clients]
    parts = [*models, ("batching", course.batching), *batchings, ("task", course.task), *algorithms_of(course)]
    for where, part in parts:
        for name, number in numbers(part, f"{where}."):
            deep = where == "model" and name.rsplit(".", 1)[-1] in _DEEP
            limit = MAX_DEPTH_SETTING if deep else most
            if abs(number) > limit and not name.endswith("seed"):
                yield f"{name} is {number}, this silo allows {limit}"
            depth += deep * abs(number)
    if depth > MAX_DEPTH_OF_ALL:
        yield f"the models of all clients have {depth} layers and the like, this silo allows {MAX_DEPTH_OF_ALL}"


def num_parameters(course: Course, input_dim: int, output_dim: int, client: str | None) -> int:
    """Return how many numbers a client's model has, its method's own parts among them, without making any of them."""
    spec = own_model(course, client, allow_import=False)
    try:
        with torch.device("meta"):
            model = spec.build(input_dim, output_dim)
            sizes = [tensor.numel() for tensor in model.state_dict().values()]
            return int(sum(sizes)) + course.algorithm.num_own_parameters(model, input_dim)
    except IsthmusError:
        return 0  # it cannot be built at all, which is told when it is
    except (RuntimeError, OverflowError, MemoryError):
        return 2**63  # a size that not even a shape can have
