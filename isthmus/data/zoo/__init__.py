"""Datasets by name."""

from __future__ import annotations

from isthmus.data.zoo.cora import Cora
from isthmus.data.zoo.dataset import Dataset
from isthmus.data.zoo.folder import Folder
from isthmus.data.zoo.locate import data_root
from isthmus.data.zoo.planetoid import CiteSeer, PubMed

DATASETS: dict[str, type[Dataset]] = {"cora": Cora, "citeseer": CiteSeer, "pubmed": PubMed, "folder": Folder}

__all__ = ["DATASETS", "CiteSeer", "Cora", "Dataset", "Folder", "PubMed", "data_root"]
