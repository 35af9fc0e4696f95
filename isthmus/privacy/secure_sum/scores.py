"""How the clients' models do, as sums: what each client's evaluation adds to them, and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.core.errors import BadMessage
from isthmus.core.protocol import EvaluateModel, Evaluation
from isthmus.core.record import Record

# More than any task has metrics: what a request names makes work.
MAX_NAMES = 32


@dataclass(frozen=True)
class ScoreSums(Record):
    """An evaluation as numbers that can be added up, by split and name in the order of the request."""

    values: tuple[float, ...]
    """Each metric times the number of examples it is over."""
    having: tuple[float, ...]
    """And that number, 0 where a client has no such metric."""
    examples: tuple[float, ...]
    """The number of examples of each split."""


def summands(evaluation: Evaluation, request: EvaluateModel) -> ScoreSums:
    """Return what an evaluation adds to the sums."""
    if not request.names:
        raise BadMessage("scores that are added up have names that the request says, and it says none")
    if len(request.names) > MAX_NAMES or len(set(request.names)) != len(request.names):
        raise BadMessage(f"names of scores that are added up are each there once, and {MAX_NAMES} at most")
    values, having = [], []
    for split in request.splits:
        found, count = evaluation.metrics.get(split, {}), evaluation.counts.get(split, 0)
        for name in request.names:
            values.append(found[name] * count if name in found else 0.0)
            having.append(float(count) if name in found else 0.0)
    examples = tuple(float(evaluation.counts.get(split, 0)) for split in request.splits)
    return ScoreSums(tuple(values), tuple(having), examples)


def misfit(outline: Record, request: EvaluateModel) -> str:
    """Return what is wrong with the form of what a client would add."""
    number = len(request.splits) * len(request.names)
    sizes = tuple(len(getattr(outline, name, ())) for name in ("values", "having", "examples"))
    wanted = (number, number, len(request.splits))
    return "" if sizes == wanted else f"it has {sizes} numbers, and {wanted} were asked for"


def evaluation_of(mean: ScoreSums, number: int, request: EvaluateModel) -> Evaluation:
    """Return the evaluation of so many clients as one, from the mean of what each adds.

    Whole numbers come back as whole numbers: what words round is far less than a half.
    """
    metrics: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for place, split in enumerate(request.splits):
        counts[split] = max(0, round(mean.examples[place] * number))
        metrics[split] = {}
        for at, name in enumerate(request.names, place * len(request.names)):
            examples = round(mean.having[at] * number)
            if examples > 0:
                metrics[split][name] = mean.values[at] * number / examples
    return Evaluation(metrics, counts)
