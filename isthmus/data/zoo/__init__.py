"""Datasets by name."""

from __future__ import annotations

from pathlib import Path

from isthmus.core.errors import BadInput
from isthmus.data.dataset import Dataset
from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.graph_set_folder import GraphSetFolder
from isthmus.data.folders.link_folder import LinkFolder
from isthmus.data.folders.own_kinds import Folders
from isthmus.data.zoo import npz_graph, tu
from isthmus.data.zoo.amazon_copurchase import AmazonCopurchase
from isthmus.data.zoo.block_model import FedcSBM
from isthmus.data.zoo.cora import Cora, SubCora
from isthmus.data.zoo.cross_scenario import CSR
from isthmus.data.zoo.csbm import CSBM, StochasticCSBM, SupervisedCSBM
from isthmus.data.zoo.dblp_csr import DBLPCSR
from isthmus.data.zoo.feddblp import FedDBLP
from isthmus.data.zoo.knowledge_graphs import WN18, FB15k237
from isthmus.data.zoo.links_of import HashedIds, LinksOf
from isthmus.data.zoo.moleculenet import BACE, BBBP, ESOL, HIV, SIDER, ClinTox, FreeSolv, Lipo, Tox21
from isthmus.data.zoo.multi_task import MultiTaskMol, MultiTaskMoleculeNet
from isthmus.data.zoo.planetoid import CiteSeer, PubMed
from isthmus.data.zoo.ratings import Ciao, Epinions
from isthmus.data.zoo.twitch import Twitch
from isthmus.data.zoo.union import Union
from isthmus.data.zoo.wiki import Wiki

DATASETS: dict[str, type[Dataset]] = {
    # nodes
    "cora": Cora,
    "citeseer": CiteSeer,
    "pubmed": PubMed,
    "wiki": Wiki,
    "acm": npz_graph.ACM,
    "amazon_computers": npz_graph.AmazonComputers,
    "amazon_photo": npz_graph.AmazonPhoto,
    "amazon_copurchase": AmazonCopurchase,
    "coauthor_cs": npz_graph.CoauthorCS,
    "coauthor_physics": npz_graph.CoauthorPhysics,
    "citation_dblp": npz_graph.CitationDBLP,
    "cora_ml": npz_graph.CoraML,
    "twitch": Twitch,
    "dblp_csr": DBLPCSR,
    "feddblp": FedDBLP,
    "fedcsbm": FedcSBM,
    "csbm": CSBM,
    "csbm_snc": StochasticCSBM,
    "csbm_sc": SupervisedCSBM,
    "subcora": SubCora,
    "union": Union,
    "folder": Folder,
    "folders": Folders,
    # links
    "wn18": WN18,
    "fb15k_237": FB15k237,
    "ciao": Ciao,
    "epinions": Epinions,
    "csr": CSR,
    "hashed_ids": HashedIds,
    "links_of": LinksOf,
    "link_folder": LinkFolder,
    # graphs
    "proteins": tu.PROTEINS,
    "imdb_binary": tu.IMDBBinary,
    "imdb_multi": tu.IMDBMulti,
    "mutag": tu.MUTAG,
    "enzymes": tu.ENZYMES,
    "dd": tu.DD,
    "nci1": tu.NCI1,
    "aids": tu.AIDS,
    "bzr": tu.BZR,
    "cox2": tu.COX2,
    "dhfr": tu.DHFR,
    "ptc_mr": tu.PTCMR,
    "hiv": HIV,
    "bace": BACE,
    "bbbp": BBBP,
    "clintox": ClinTox,
    "sider": SIDER,
    "tox21": Tox21,
    "esol": ESOL,
    "lipo": Lipo,
    "freesolv": FreeSolv,
    "multi_task_mol": MultiTaskMol,
    "multi_task_moleculenet": MultiTaskMoleculeNet,
    "graph_set_folder": GraphSetFolder,
}


def is_own_folder(word: str) -> bool:
    """Whether a word is a folder of one's own; a dataset's name is that dataset, and `./cora` a folder called so.

    Raises BadInput for a path at which there is none.
    """
    if word in DATASETS or Path(word).is_dir():
        return word not in DATASETS
    if len(Path(word).parts) > 1:
        raise BadInput(f"there is no folder {word!r}; give a folder of your own, or a dataset (isthmus list datasets)")
    return False


def namesake_note(word: str) -> str:
    """Return what to say where a folder is called as the dataset that was taken; nothing where there is none."""
    if word not in DATASETS or not Path(word).is_dir():
        return ""
    return f"{word} is the dataset; the folder of that name is ./{word}"
