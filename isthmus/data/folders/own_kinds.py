"""The three kinds of own folders: which one lies where, which one holds what; several of them as one dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.dividing import Holding
from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.graph_set_folder import GraphSetFolder
from isthmus.data.folders.link_folder import LinkFolder
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.schema.schema import SCHEMA_FILE, write_schema
from isthmus.data.folders.schema.schema_union import schema_of
from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.folders.tables.reading import find_table
from isthmus.data.joining import joined

# By their last table, the first that is found decides: a set of graphs has all tables that a graph has.
OWN_FOLDERS: dict[str, type[OwnFolder]] = {
    "graph_set_folder": GraphSetFolder,
    "link_folder": LinkFolder,
    "folder": Folder,
}


def kind_at(path: Path, otherwise: type[OwnFolder] = Folder) -> type[OwnFolder]:
    """Return which kind of folder lies at a path; `otherwise` where that cannot be told."""
    return next((kind for kind in OWN_FOLDERS.values() if find_table(path, kind.tables[-1])), otherwise)


def names_for_tables(data: Holding) -> tuple[str, ...]:
    """Return names of the classes that a table can hold: a class named -1 would be read as no label."""
    names = data.named_classes
    odd = any(name.startswith("-") and is_whole(name) for name in names)
    return tuple(f"class {name}" for name in names) if odd else names


def kind_for(data_type: type[Any]) -> type[OwnFolder]:
    """Return the kind of folder that holds a kind of data."""
    for kind in OWN_FOLDERS.values():
        if kind.data_type is data_type:
            return kind
    known = ", ".join(sorted(kind.data_type.__name__ for kind in OWN_FOLDERS.values()))
    raise BadInput(f"there is no folder for a {data_type.__name__}; known: {known}")


@dataclass(frozen=True)
class Divided:
    """Folders that were written.

    Fields:
        kind:        of folders
        whole:       what was divided, with its classes as the tables name them; without any if each part has its own
        own_classes: whether the parts have classes of their own
    """

    kind: type[OwnFolder]
    whole: Any
    own_classes: bool

    @property
    def dataset(self) -> OwnFolder:
        """How a course reads one of the folders, but for its path."""
        return self.kind.like(self.whole)

    @property
    def lost_attributes(self) -> list[str]:
        """Attributes that no table holds, since they have several values for each item."""
        return [name for name, found in self.whole.attributes.items() if found.dim() > 1]

    def write_schema(self, path: Path) -> bool:
        """Write the schema that all parts have in common; False where there is none."""
        if self.kind is not Folder or self.own_classes:
            return False
        write_schema(schema_of(self.whole), path)
        return True


def write_divided(whole: Any, parts: Mapping[Path, Any], *, with_schemas: bool = False) -> Divided:
    """Write each part into its folder, which must be new; with a schema, where its kind has one."""
    kind = kind_for(type(whole))
    # Where some part has other classes than the whole, numbers of classes mean something else in each.
    own = any((p.num_classes, p.class_names) != (whole.num_classes, whole.class_names) for p in parts.values())
    names = () if own else names_for_tables(whole)
    for path, part in parts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        named = replace(part, class_names=names_for_tables(part) if own else names)
        kind.write(named, path)
        if with_schemas and kind is Folder:
            write_schema(schema_of(named), path / SCHEMA_FILE)
    return Divided(kind, replace(whole, class_names=names), own)


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

    licence = "your own"

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
