"""The three kinds of own folders: which one lies where, which one holds a kind of data; data written as several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.graph_set_folder import GraphSetFolder
from isthmus.data.folders.link_folder import LinkFolder
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.schema.schema import SCHEMA_FILE, write_schema
from isthmus.data.folders.schema.schema_union import schema_of
from isthmus.data.folders.schema.vocabulary import is_whole
from isthmus.data.folders.tables.reading import find_table
from isthmus.data.holding import Holding

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
    names = data.class_names or tuple(str(number) for number in range(data.num_classes))
    odd = any(name.startswith("-") and is_whole(name) for name in names)
    return tuple(f"class {name}" for name in names) if odd else names


def have_own_classes(whole: Holding, parts: Iterable[Holding]) -> bool:
    """Whether some part has other classes than the whole; numbers of classes mean something else in each then."""
    return any((p.num_classes, p.class_names) != (whole.num_classes, whole.class_names) for p in parts)


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
    own = have_own_classes(whole, parts.values())
    names = () if own else names_for_tables(whole)
    for path, part in parts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        named = replace(part, class_names=names_for_tables(part) if own else names)
        kind.write(named, path)
        if with_schemas and kind is Folder:
            write_schema(schema_of(named), path / SCHEMA_FILE)
    return Divided(kind, replace(whole, class_names=names), own)
