"""A user's own folder as a dataset, whatever it holds (nodes, links or graphs), and what is read from it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.dividing import Holding, has_split
from isthmus.data.features import normalized_rows
from isthmus.data.folders.tables.reading import find_table

Data = TypeVar("Data", bound=Holding, covariant=True)


@dataclass(frozen=True)
class OwnData(Generic[Data]):
    """Data read from a folder, and its owner's names.

    Fields:
        data:         the graph, the graph of links or the set of graphs
        item_columns: what tells the items apart in a table of predictions, in their order: `id` of nodes and graphs,
                      `source` and `target` of links
        node_ids:     the ids of the nodes as text, in their order; None where ids tell nodes apart within a graph only
        numbered:     whether labels are numbers of classes, which name none: what they stand for, only their order says
        own_split:    whether the masks are the owner's own, from a column of splits
    """

    data: Data
    item_columns: Mapping[str, tuple[str, ...]]
    node_ids: tuple[str, ...] | None
    numbered: bool = False
    own_split: bool = False


@dataclass(frozen=True)
class OwnFolder(Dataset):
    """A folder of tables. Between sites every silo has its own, and the course says how all of them are read.

    Fields:
        path:        the folder; a relative path starts at the current folder. Between sites every silo has its own
        class_names: the classes or tasks in the order of their numbers; silos of one federation must give the same
        undirected:  whether an edge or link means the same in both directions
        by_position: between silos, whether features and classes without names count as those of the others, by their
                     order; otherwise they agree only with such that have none either
        match_ids:   between silos, how nodes in common get equal keys: `secret`, by a secret that all silos were given
                     (isthmus join --id-secret-file), or `private`, by ids that go round all of them, blinded
        own_split:   whether the column `split` stands where there is one; false lets the course's masks divide anew
    """

    licence = "your own"
    # What such a folder is called, what its data is, and the tables it has; the last is one that the others lack.
    called: ClassVar[str]
    data_type: ClassVar[type[Any]]
    tables: ClassVar[tuple[str, ...]]

    path: str = ""
    class_names: tuple[str, ...] = ()
    undirected: bool = True
    by_position: bool = False
    own_split: bool = True
    match_ids: str = "secret"

    def __post_init__(self) -> None:
        if self.match_ids not in ("secret", "private"):
            raise ValueError(f"match_ids is {self.match_ids!r}; choose from secret, private")

    @abstractmethod
    def read_from(self, path: Path) -> OwnData[Any]:
        """Return what is in a folder, or raise one BadInput with all that is wrong with it."""

    @classmethod
    @abstractmethod
    def like(cls, data: Any) -> Self:
        """Return how the folders are read that `write` makes of parts of `data`; its classes must have names."""

    @staticmethod
    @abstractmethod
    def write(data: Any, path: Path, /) -> None:
        """Write data as a new folder."""

    @staticmethod
    @abstractmethod
    def describe(data: Any, directed: bool = False) -> str:
        """Return in a few words what a folder holds; `directed` says that edges were read in one direction each."""

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the dataset of a folder of which nothing else is known."""
        return cls(path=str(path))

    def read(self) -> OwnData[Any]:
        """Return the data with what the folder says beside it, such as the ids of the nodes."""
        if not self.path:
            raise BadInput(f"dataset.path is missing; give your {self.called}: dataset.path=my_folder")
        try:
            read = self.read_from(Path(self.path))
        except BadInput as error:
            raise BadInput(f"{self._hint()}{error}") from None
        if not self.own_split:
            read = replace(read, data=read.data.with_masks({}))
        read = replace(read, own_split=has_split(read.data))
        if not self.normalize_features:
            return read
        return replace(read, data=replace(read.data, x=normalized_rows(read.data.x)))

    def _hint(self) -> str:
        """Return which kind of folder lies at the path, if it is another one."""
        from isthmus.data.folders.own_kinds import OWN_FOLDERS, kind_at  # it imports this file

        other = kind_at(Path(self.path), otherwise=type(self))
        if other is type(self) or not other.is_at(Path(self.path)):
            return ""
        (name,) = (name for name, kind in OWN_FOLDERS.items() if kind is other)
        return f"{self.path} has the tables of a {other.called}: use dataset.name={name}, or mend this: "

    def load(self, root: Path) -> Holding:
        """Return the data; nothing is read from `root`."""
        held: Holding = self.read().data
        return held

    def present(self, root: Path) -> bool:
        """Return whether the folder holds its tables."""
        return bool(self.path) and self.is_at(Path(self.path))

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """Return whether a folder holds all tables of this kind."""
        return all(find_table(path, stem) for stem in cls.tables)
