"""Models: encoders, graph neural networks, readouts and decoders, put together by a `ModelSpec`.

The tables name what a course can ask for; they hold spec classes, whose fields are the hyper-parameters.
"""

from isthmus.models.decoders import (
    BilinearDecoder,
    DecoderSpec,
    DistMultDecoder,
    DotDecoder,
    HadamardMLPDecoder,
    LinearDecoder,
    MLPDecoder,
)
from isthmus.models.encoders import CategoricalEncoder, EncoderSpec, LinearEncoder, MLPEncoder
from isthmus.models.gnn.appnp import APPNP
from isthmus.models.gnn.bias_free import BiasFreeAPPNP, BiasFreeGAT, BiasFreeGCN, BiasFreeMLP, BiasFreeSAGE
from isthmus.models.gnn.gap import GAP
from isthmus.models.gnn.gat import GAT
from isthmus.models.gnn.gcn import GCN
from isthmus.models.gnn.gin import GIN
from isthmus.models.gnn.gprgnn import GPRGNN
from isthmus.models.gnn.mlp import MLP
from isthmus.models.gnn.progap import ProGAP
from isthmus.models.gnn.sage import SAGE
from isthmus.models.gnn.sgc import SGC
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model, ModelSpec
from isthmus.models.parts import GNN, GNNSpec
from isthmus.models.readouts import MaxReadout, MeanReadout, ReadoutSpec, Set2SetReadout, SumReadout

GNNS: dict[str, type[GNNSpec]] = {
    "mlp": MLP,
    "gcn": GCN,
    "sage": SAGE,
    "gat": GAT,
    "gin": GIN,
    "gprgnn": GPRGNN,
    "appnp": APPNP,
    "sgc": SGC,
    "gap": GAP,
    "progap": ProGAP,
    "bias_free_mlp": BiasFreeMLP,
    "bias_free_appnp": BiasFreeAPPNP,
    "bias_free_gcn": BiasFreeGCN,
    "bias_free_sage": BiasFreeSAGE,
    "bias_free_gat": BiasFreeGAT,
}
ENCODERS: dict[str, type[EncoderSpec]] = {
    "linear": LinearEncoder,
    "mlp": MLPEncoder,
    "categorical": CategoricalEncoder,
}
DECODERS: dict[str, type[DecoderSpec]] = {
    "linear": LinearDecoder,
    "mlp": MLPDecoder,
    "dot": DotDecoder,
    "distmult": DistMultDecoder,
    "bilinear": BilinearDecoder,
    "hadamard_mlp": HadamardMLPDecoder,
}
READOUTS: dict[str, type[ReadoutSpec]] = {
    "mean": MeanReadout,
    "sum": SumReadout,
    "max": MaxReadout,
    "set2set": Set2SetReadout,
}

__all__ = [
    "APPNP",
    "DECODERS",
    "ENCODERS",
    "GAP",
    "GAT",
    "GCN",
    "GIN",
    "GNN",
    "GNNS",
    "GPRGNN",
    "MLP",
    "READOUTS",
    "SAGE",
    "SGC",
    "BiasFreeAPPNP",
    "BiasFreeGAT",
    "BiasFreeGCN",
    "BiasFreeMLP",
    "BiasFreeSAGE",
    "BilinearDecoder",
    "CategoricalEncoder",
    "DecoderSpec",
    "DistMultDecoder",
    "DotDecoder",
    "EncoderSpec",
    "GNNSpec",
    "GraphInput",
    "HadamardMLPDecoder",
    "LinearDecoder",
    "LinearEncoder",
    "MLPDecoder",
    "MLPEncoder",
    "MaxReadout",
    "MeanReadout",
    "Model",
    "ModelSpec",
    "ProGAP",
    "ReadoutSpec",
    "Set2SetReadout",
    "SumReadout",
]
