"""A silo's own policy: which courses it takes part in, whatever the server says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isthmus.config.build import Builder
from isthmus.config.course import Course
from isthmus.config.load import read_yaml
from isthmus.config.tables import name_of
from isthmus.core.codec import DEFAULT_MAX_BYTES
from isthmus.core.exposure import exposure
from isthmus.core.protocol import EvaluateModel


@dataclass(frozen=True)
class Policy:
    """What a silo allows. Without a policy file, everything that is installed here is allowed.

    Fields:
        algorithms:        names of the algorithms that may run here; null allows all
        min_sites:         with fewer sites in the course, or a course that goes on with fewer, the silo stays away
        max_message_bytes: a larger message is refused
        only_folded:       whether the algorithm must look at nothing of a client's replies but their fold (metrics
                           excepted). It binds the algorithm, not a dishonest server, whose process gets every reply
        required_defences: names of defences that a course must have
    """

    algorithms: tuple[str, ...] | None = None
    min_sites: int = 1
    max_message_bytes: int = DEFAULT_MAX_BYTES
    only_folded: bool = False
    required_defences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.min_sites < 1 or self.max_message_bytes < 1:
            raise ValueError(
                f"min_sites is {self.min_sites!r}, max_message_bytes {self.max_message_bytes!r}; both must be positive"
            )

    def refusal(self, course: Course, sites: tuple[str, ...]) -> str:
        """Return why this silo stays away from a course, or nothing."""
        name = name_of(type(course.algorithm))
        if self.algorithms is not None and name not in self.algorithms:
            return f"its policy allows the algorithms {', '.join(self.algorithms)}, not {name}"
        if course.algorithm.pooled:
            return f"{name} needs the whole graph in one place, and this silo's graph stays here"
        if len(sites) < self.min_sites:
            return f"its policy asks for {self.min_sites} sites at least; this course has {len(sites)}"
        if course.min_replies < self.min_sites:
            return (
                f"its policy asks for {self.min_sites} sites at least; this course goes on with "
                f"min_replies={course.min_replies}"
            )
        missing = [defence for defence in self.required_defences if defence not in getattr(course, "defences", ())]
        if missing:
            return f"its policy requires the defence {missing[0]!r}, which the course does not have"
        if self.only_folded:
            seen = [e.request for e in exposure(type(course.algorithm)) if e.server_sees == "each client's"]
            seen = [request for request in seen if request != EvaluateModel.__name__]
            if seen:
                return f"its policy lets the server see only folds; {name} shows it each client's reply to {seen[0]}"
        return ""


def load_policy(path: Path | None) -> Policy:
    """Read a policy file; none means that everything is allowed."""
    if path is None:
        return Policy()
    policy = Builder(str(path)).fields(Policy, read_yaml(path), "")
    assert isinstance(policy, Policy)
    return policy
