"""Data of one kind and a task for another: refused by name, before anything is trained or written."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.data.link_graph import LinkGraph
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo import Dataset


@dataclass(frozen=True, kw_only=True)
class Friends(Dataset):
    """Twelve links between six nodes."""

    def load(self, root: Path) -> LinkGraph:
        """Make them."""
        links = torch.combinations(torch.arange(6))[:12].t()
        return LinkGraph(torch.ones(6, 1), links, torch.arange(12) % 2, 2, torch.arange(6), torch.arange(12), name="us")

    def present(self, root: Path) -> bool:
        """Nothing is needed."""
        return True


COURSE = ist.Course(dataset=Friends(), splitter=RandomSplitter(), num_clients=2, rounds=1)


def test_a_node_task_refuses_a_graph_of_links_and_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'us' consists of links, the task 'node_classification' learns from nodes"):
        ist.run(COURSE, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
