"""Graph neural networks: one architecture, one file, named as its paper names it."""

from isthmus.models.gnn.appnp import APPNP, APPNPStack
from isthmus.models.gnn.gat import GAT, GATLayer, GATStack
from isthmus.models.gnn.gcn import GCN, GCNLayer, GCNStack
from isthmus.models.gnn.gin import GIN, GINELayer, GINLayer, GINStack
from isthmus.models.gnn.gprgnn import GPRGNN, GPRGNNStack
from isthmus.models.gnn.mlp import MLP, MLPStack
from isthmus.models.gnn.sage import SAGE, SAGELayer, SAGEStack
from isthmus.models.gnn.sgc import SGC, SGCStack
from isthmus.models.parts import GNN, GNNSpec, LayerStack, StackSpec

__all__ = [
    "APPNP",
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "GPRGNN",
    "MLP",
    "SAGE",
    "SGC",
    "APPNPStack",
    "GATLayer",
    "GATStack",
    "GCNLayer",
    "GCNStack",
    "GINELayer",
    "GINLayer",
    "GINStack",
    "GNNSpec",
    "GPRGNNStack",
    "LayerStack",
    "MLPStack",
    "SAGELayer",
    "SAGEStack",
    "SGCStack",
    "StackSpec",
]
