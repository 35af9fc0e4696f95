"""Data that is divided among several, written as a folder for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.own_folder import OwnFolder
from isthmus.data.folders.own_kinds import have_own_classes, kind_for, names_for_tables
from isthmus.data.folders.schema.schema import SCHEMA_FILE, write_schema
from isthmus.data.folders.schema.schema_union import schema_of


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
