"""Several folders of one's own as a dataset, each of them a client: a federation rehearsed with its real data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.own_kinds import OWN_FOLDERS, kind_at
from isthmus.data.holding import Holding
from isthmus.data.joining import joined

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Folders(Dataset):
    """Your own folders, each of them a client, under the rules that silos have between sites.

    There are as many clients as folders, and no splitter. A folder's own split stands; one without is divided by the
    masks, by random numbers of its own. Features and classes are compared by name. Nothing is between the folders:
    where two of them have the same id, these are two nodes.

    Fields:
        paths: the folders, all of one kind; a relative path starts at the current folder
        names: the clients' names; empty for the folders' own
        each:  how every folder is read: folder, link_folder or graph_set_folder with its options, as a course between
               sites has it; null for what lies at the first path
    """

    summary: ClassVar[str] = "your own folders, each of them a client: a federation rehearsed with its real data"
    licence: ClassVar[str] = "your own"

    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    each: Dataset | None = None

    def __post_init__(self) -> None:
        if self.names and len(self.names) != len(self.paths):
            raise ValueError(f"names has {len(self.names)} entries, paths {len(self.paths)}; one for each is needed")
        named = self.client_names
        for name in named:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"a client would be named {name!r}; names are of letters, digits, - and _: give names=[...]"
                )
            if named.count(name) > 1:
                raise ValueError(
                    f"two clients would be named {name!r}; give each folder a name of its own: names=[...]"
                )
        if self.each is not None and not isinstance(self.each, OwnFolder):
            known = ", ".join(sorted(OWN_FOLDERS))
            raise ValueError(f"each is {type(self.each).__name__}, which is no folder of one's own; known: {known}")
        if self.normalize_features:
            raise ValueError("normalize_features is set for all folders in one place: each.normalize_features")

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names, in the order of the folders."""
        return self.names or tuple(Path(path).resolve().name for path in self.paths)

    @property
    def one(self) -> OwnFolder:
        """How a folder is read; between sites, this is the course's dataset."""
        if not self.paths:
            raise BadInput('dataset.paths is empty; name your folders: dataset.paths="[graphs/a, graphs/b]"')
        if isinstance(self.each, OwnFolder):
            return self.each
        first = Path(self.paths[0])
        return replace(kind_at(first).at(first), path="")

    @property
    def by_position(self) -> bool:
        """Whether features and classes without names agree with any of the same number."""
        return isinstance(self.each, OwnFolder) and self.each.by_position

    @property
    def places(self) -> Mapping[str, Path]:
        """Each client's folder."""
        return dict(zip(self.client_names, map(Path, self.paths), strict=True))

    def load(self, root: Path) -> Holding:
        """Return all folders side by side; nothing is read from `root`."""
        one = self.one
        whole: Holding = joined([replace(one, path=path).read().data for path in self.paths], "folders")
        return whole

    def present(self, root: Path) -> bool:
        """Return whether every folder holds its tables."""
        return bool(self.paths) and all(self.one.is_at(Path(path)) for path in self.paths)
