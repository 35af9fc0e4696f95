"""Which rows of a table of links are links, and which are told to be none: examples for link prediction, no more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.folders.tables.columns import Integers, first_told
from isthmus.data.folders.tables.reading import Problems, Table, listed

# Two classes of these names, in small letters, may well say whether there is a link: no, then yes.
NO_AND_YES = (("0", "1"), ("false", "true"), ("no", "yes"))


def doubtful_class(class_names: Sequence[str], num_classes: int) -> str:
    """Return the class that sounds like "no link" where there are two and the other sounds like "link"; or nothing."""
    names = tuple(class_names) or tuple(map(str, range(min(num_classes, 3))))
    small = {name.casefold(): name for name in names}
    return next((small[no] for no, yes in NO_AND_YES if len(names) == 2 and small.keys() == {no, yes}), "")


def number_of(negatives: str, label: Integers, class_names: tuple[str, ...], file: str, problems: Problems) -> int:
    """Return the number of the class whose pairs are no links, -1 where no row has it; notes a name that is unknown.

    A table without such a row is fine where all of its rows are of one class: there are only links in it. With two
    classes or more, a name that is none of them is a slip, after which pairs that are no links would count as such.
    """
    known = class_names or tuple(map(str, np.unique(label[label >= 0]).tolist()))
    name = _same_name(negatives, known)
    if name:
        return class_names.index(name) if class_names else int(name)
    of_another_kind = bool(known) and is_whole(known[0]) != is_whole(negatives)
    if len(known) > 1 or of_another_kind or negatives == "-1":
        problems.add(
            file,
            f"dataset.negatives is {negatives!r}, which is no class of its links (an empty label, or -1, is none); "
            f"known: {listed(known)}",
        )
    return int(negatives) if not class_names and is_whole(negatives) else -1


def _same_name(wanted: str, known: Sequence[str]) -> str:
    """Return the one known name that is the wanted one, or else the one that is so but for capitals; or nothing."""
    exact = [name for name in known if name == wanted]
    same = exact or [name for name in known if name.casefold() == wanted.casefold()]
    return same[0] if len(same) == 1 else ""


def truth(label: Integers, number: int) -> Tensor:
    """Return for each pair 1 if it is a link, 0 if it has the class that says it is none, -1 without a label."""
    return torch.from_numpy(np.where(label < 0, -1, (label != number).astype(np.int64)))


def note_contradictions(links: Table, ends: Tensor, linked: Tensor, undirected: bool, problems: Problems) -> None:
    """Note the rows that say of a pair the opposite of the first row that says something of it."""
    rows = (linked >= 0).nonzero().flatten()
    if len(rows) == 0:
        return
    earlier, known = first_told(ends[:, rows], undirected)
    said = linked[rows].numpy()
    wrong = np.flatnonzero(known & (said != said[earlier]))
    first = {int(rows[place]): int(rows[earlier[place]]) for place in wrong.tolist()}
    source, target = (links.columns[name] for name in ("source", "target"))
    problems.add_rows(
        links.file,
        sorted(first),
        lambda row: (
            f"says that {str(source[row].as_py())!r} and {str(target[row].as_py())!r} are "
            f"{'linked' if linked[row] else 'not linked'}, row {first[row] + 1} that they are"
            f"{' not' if linked[row] else ''}"
        ),
    )
