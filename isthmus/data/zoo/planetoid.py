"""CiteSeer and PubMed with the public split of Planetoid (Yang, Cohen and Salakhutdinov, 2016).

The raw files are pickles, read by torch_geometric, and a pickle can do what a program can: only files with the digest
of those that were published are read.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import urlopen

import torch

from isthmus.core.errors import BadInput, MissingData
from isthmus.core.outside import DATA_VARIABLE, cache_folder
from isthmus.data.features import compact, normalized_rows
from isthmus.data.graph import Graph, undirected
from isthmus.data.zoo.raw import RawDataset, digests, whole_file

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Planetoid(RawDataset):
    """A citation graph in the raw files of Planetoid, at `root/planetoid/<folder>/raw`.

    Nothing is written beside files that are there. Absent files are downloaded and tried elsewhere first, then
    each moved in whole: into `root`, or into the user's cache folder where `root` cannot be written.
    """

    published: ClassVar[str] = "github.com/kimiyoung/planetoid (data)"
    class_names: ClassVar[tuple[str, ...]]
    licence = "none stated; published by LINQS, split by Planetoid"

    def load(self, root: Path) -> Graph:
        """Return the graph, downloading its files when they are absent."""
        place = self._found(root) or self._download(root)
        data = self._read(self.verified(place)[0].parent)
        num_nodes = int(data.num_nodes)
        y = data.y.clone()
        # CiteSeer: nodes amid the test range that no file holds have neither words nor class; the reader says 0.
        first_test = int(data.test_mask.nonzero().min())
        y[first_test:][~data.test_mask[first_test:]] = -1
        x = compact(data.x)
        return Graph(
            x=normalized_rows(x) if self.normalize_features else x,
            edge_index=undirected(data.edge_index, num_nodes)[0],
            y=y,
            num_classes=len(self.class_names),
            node_ids=torch.arange(num_nodes),
            masks={"train": data.train_mask, "val": data.val_mask, "test": data.test_mask},
            class_names=self.class_names,
            name=self.name.lower(),
        )

    def present(self, root: Path) -> bool:
        """Return whether all raw files are in `root` or in the user's cache folder."""
        return self._found(root) is not None

    @property
    def needs(self) -> tuple[str, ...]:
        """The files of this graph."""
        return tuple(f"planetoid/{self.name}/raw/ind.{self.name.lower()}.{part}" for part in PARTS)

    def _found(self, root: Path) -> Path | None:
        return next((place for place in _places(root) if super(Planetoid, self).present(place)), None)

    def _read(self, raw: Path) -> Any:
        from torch_geometric.io import read_planetoid_data

        try:
            return read_planetoid_data(str(raw), self.name)
        except Exception as error:  # a damaged pickle can raise anything
            raise BadInput(
                f"the files ind.{self.name.lower()}.* in {raw} cannot be read ({type(error).__name__}: "
                f"{error}); delete them and get them anew"
            ) from error

    def _download(self, root: Path) -> Path:
        from torch_geometric.datasets import Planetoid as Source

        contents: dict[str, bytes] = {}
        try:
            for file in self.needs:
                with urlopen(f"{Source.url}/{Path(file).name}", timeout=TIMEOUT_SECONDS) as answer:
                    contents[file] = answer.read()
            self._try_out(contents)
        except (OSError, HTTPException, BadInput) as error:
            names = ", ".join(Path(file).name for file in self.needs)
            places = " and ".join(str((place / self.needs[0]).parent) for place in _places(root))
            raise MissingData(
                f"{self.name}: looked for {names} in {places}; not all are there, and the download failed ({error}). "
                f"Connect to the internet, or set --data-root or {DATA_VARIABLE} to a folder that holds "
                f"planetoid/{self.name}/raw/ind.{self.name.lower()}.*"
            ) from error
        refusals = []
        for place in _places(root):
            try:
                for file, content in contents.items():
                    (place / file).parent.mkdir(parents=True, exist_ok=True)
                    with whole_file(place / file) as temporary:
                        temporary.write_bytes(content)
            except OSError as error:
                refusals.append(str(error))
                continue
            return place
        raise BadInput(
            f"{self.name}: the download cannot be kept ({'; '.join(refusals)}); give a --data-root that can be written"
        )

    def _try_out(self, contents: Mapping[str, bytes]) -> None:
        """Read the files in a folder of their own: an answer that is no dataset must not get into the root."""
        for file, content in contents.items():
            expected, found = digests().get(file), hashlib.sha256(content).hexdigest()
            if expected not in (None, found):
                raise BadInput(
                    f"{Path(file).name} came with {len(content):,} bytes and SHA-256 {found}, expected {expected}"
                )
        with tempfile.TemporaryDirectory() as folder:
            for file, content in contents.items():
                (Path(folder) / Path(file).name).write_bytes(content)
            self._read(Path(folder))


def _places(root: Path) -> list[Path]:
    """Return where files may be: below the root, or below the user's cache folder."""
    return list(dict.fromkeys([root, cache_folder()]))


class CiteSeer(Planetoid):
    """3,327 papers on computer science, 4,552 undirected citation links, 6 classes; 15 have no class."""

    class_names = ("AI", "ML", "IR", "DB", "Agents", "HCI")


class PubMed(Planetoid):
    """19,717 papers on diabetes, 44,324 undirected citation links, 3 classes, TF-IDF features."""

    class_names = ("Experimental", "Type_1", "Type_2")
