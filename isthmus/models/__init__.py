"""Models: encoders, graph neural networks, readouts and decoders, put together by a `ModelSpec`.

The tables name what a course can ask for; they hold spec classes, whose fields are the hyper-parameters.
"""

from isthmus.models.decoders import DecoderSpec, LinearDecoder, MLPDecoder
from isthmus.models.encoders import EncoderSpec, LinearEncoder, MLPEncoder
from isthmus.models.gnn import APPNP, GAT, GCN, GIN, GNN, GPRGNN, MLP, SAGE, SGC, GNNSpec
from isthmus.models.inputs import GraphInput
from isthmus.models.model import Model, ModelSpec
from isthmus.models.readouts import MaxReadout, MeanReadout, ReadoutSpec, SumReadout
from isthmus.models.sparse import Features, SparseMatrix

GNNS: dict[str, type[GNNSpec]] = {
    "mlp": MLP,
    "gcn": GCN,
    "sage": SAGE,
    "gat": GAT,
    "gin": GIN,
    "gprgnn": GPRGNN,
    "appnp": APPNP,
    "sgc": SGC,
}
ENCODERS: dict[str, type[EncoderSpec]] = {"linear": LinearEncoder, "mlp": MLPEncoder}
DECODERS: dict[str, type[DecoderSpec]] = {"linear": LinearDecoder, "mlp": MLPDecoder}
READOUTS: dict[str, type[ReadoutSpec]] = {"mean": MeanReadout, "sum": SumReadout, "max": MaxReadout}

__all__ = [
    "APPNP",
    "DECODERS",
    "ENCODERS",
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
    "DecoderSpec",
    "EncoderSpec",
    "Features",
    "GNNSpec",
    "GraphInput",
    "LinearDecoder",
    "LinearEncoder",
    "MLPDecoder",
    "MLPEncoder",
    "MaxReadout",
    "MeanReadout",
    "Model",
    "ModelSpec",
    "ReadoutSpec",
    "SparseMatrix",
    "SumReadout",
]
