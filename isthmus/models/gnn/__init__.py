"""Graph neural networks: one architecture, one file, named as its paper names it."""

from isthmus.models.gnn.appnp import APPNP
from isthmus.models.gnn.gat import GAT
from isthmus.models.gnn.gcn import GCN
from isthmus.models.gnn.gin import GIN
from isthmus.models.gnn.gprgnn import GPRGNN
from isthmus.models.gnn.mlp import MLP
from isthmus.models.gnn.sage import SAGE
from isthmus.models.gnn.sgc import SGC
from isthmus.models.parts import GNN, GNNSpec

__all__ = ["APPNP", "GAT", "GCN", "GIN", "GNN", "GPRGNN", "MLP", "SAGE", "SGC", "GNNSpec"]
