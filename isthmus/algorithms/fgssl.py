"""FGSSL: node semantic contrast and graph structure distillation against the global model.

Huang, Wan, Ye and Du (2023), "Federated graph semantic and structural learning".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedavg import FedAvg, ModelUpdate, TrainModel
from isthmus.core.errors import BadInput, refuse
from isthmus.core.protocol import on
from isthmus.core.record import Params
from isthmus.learn.able import require_classes_of_nodes, require_whole_graph
from isthmus.learn.augment import Augmentation
from isthmus.learn.contrast import node_contrast
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.one_or_many import Graphs
from isthmus.learn.optimizers import SGD, BothWays, Optimizer
from isthmus.learn.tasks.node_classification import NodeBatch
from isthmus.learn.tasks.task import StackedData
from isthmus.learn.together.layouts import replaced
from isthmus.learn.together.stacked_clients import Frozen, GraphCohort, StackedLoss
from isthmus.models.dropout import Streams
from isthmus.models.model import Model
from isthmus.models.products.sparse import Pattern, SparseMatrix


@dataclass(frozen=True)
class FGSSL(FedAvg):
    """Clients learn labels, to tell classes apart as the global model does, and whom a node resembles, as it does.

        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)     the server sees only the weighted mean

    A client keeps the received model as it is, frozen, beside the one it trains: G is all but the last layer, F the
    last one. In every local step it takes a strong view of its graph for its own model and a weak view for the frozen
    one, h and z being the outputs of G and F there, and minimises

        L = L_CE + lambda_c L_FNSC + lambda_d L_FGSD                                             (eq. 12)

    L_CE:   the cross-entropy of the training nodes on the graph as it is (eq. 5)
    L_FNSC: the mean over training nodes i of the contrast of h_i with the frozen model's h_j, positives being the
            training nodes of i's class, i's own among them, negatives those of other classes (eq. 8):
            -1/|P_i| sum_p log( e_ip / (e_ip + sum_k e_ik) ),   e_ij = exp(cos(h_i, h_j) / tau)
            Equation 7 prints exp(cos) / tau; a factor 1 / tau on every e would cancel, so tau is read as the
            temperature inside. A client with one class only has no negatives, and L_FNSC is 0 there
    L_FGSD: the mean over all nodes i of the divergence sum_j S^g_ij log(S^g_ij / S_ij) from the frozen model's to the
            own distribution over i's neighbours j, S_ij = softmax_j(<z_i, z_j> / omega) (eq. 9 to 11). The neighbours
            are those of the graph as it is; nodes with one neighbour or none contribute 0

    The own model runs with dropout, the frozen one without. With lambda_c = lambda_d = 0 this is FedAvg. Nothing more
    is sent than in FedAvg.

    Fields:
        lambda_c:          strength of the contrast; 0 leaves it out
        lambda_d:          strength of the distillation; 0 leaves it out
        tau:               temperature of the contrast
        omega:             temperature of the distillation
        strong:            view of the own model: rates of removed edges and masked feature columns
        weak:              view of the frozen model
        max_contrast:      a client with more training nodes contrasts each with so many that are drawn at random in
                           every step, and with its own
        local_steps, step_unit, optimizer, weighting, keep_moments: as in FedAvg
    """

    lambda_c: float = 3.0
    lambda_d: float = 1.0
    tau: float = 0.1
    omega: float = 5.0
    strong: Augmentation = Augmentation(edges=0.8, features=0.5)
    weak: Augmentation = Augmentation(edges=0.3, features=0.3)
    max_contrast: int = 4096
    optimizer: Optimizer = SGD(lr=0.1, momentum=0.9, weight_decay=5e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lambda_c", "lambda_d"):
            refuse(not 0.0 <= getattr(self, name) < float("inf"), self, name, "it must be at least 0")
        for name in ("tau", "omega"):
            refuse(not 0.0 < getattr(self, name) < float("inf"), self, name, "a temperature is above 0")
        refuse(self.max_contrast < 1, self, "max_contrast", "it must be at least 1")

    def require_able(self, client: GraphClient) -> None:
        """Refuse clients that neither term can be taken of, where one counts."""
        if not self.lambda_c and not self.lambda_d:
            return
        require_classes_of_nodes(client, "FGSSL contrasts classes of nodes")
        require_whole_graph(client, "FGSSL takes views of the whole graph")
        if not isinstance(client.model, Model):
            raise BadInput(
                f"FGSSL needs a model in two pieces, representations and classifier; {type(client.model).__name__} is "
                "none of this package's"
            )

    @on(TrainModel)
    def train(self, request: TrainModel, client: GraphClient) -> ModelUpdate:
        """Train the received model, held near it in what nodes mean and whom they resemble."""
        fitted = self.fit(request.params, client, loss=self.loss(client.complete(request.params), client))
        return ModelUpdate(fitted.params, self.weight(client))

    def loss(self, frozen: Params, client: GraphClient) -> BothWays | None:
        """Return the loss of equation 12; the task's own when neither term counts."""
        if not self.lambda_c and not self.lambda_d:
            return None
        self.require_able(client)

        def alone(model: nn.Module, batch: NodeBatch, generator: torch.Generator) -> Tensor:
            labelled = client.task.loss(model, batch, generator)
            return self._near(model, labelled, lambda: frozen, [client], Graphs.of_one(batch.graph, generator))[0]

        return BothWays(alone, self.loss_together, alters_features=True)

    def loss_together(self, clients: GraphCohort, about: Sequence[None]) -> StackedLoss:
        """Return what `loss` does for many clients side by side; each draws what it would draw alone."""

        def together(model: nn.Module, data: StackedData, streams: Streams, frozen: Frozen) -> Tensor:
            labelled = clients.task.stacked_loss(model, data, streams)
            return self._near(model, labelled, frozen, clients, Graphs.of_many(clients, data, streams))

        return together

    def _near(
        self, model: nn.Module, total: Tensor, frozen: Frozen, clients: Iterable[GraphClient], graphs: Graphs
    ) -> Tensor:
        """Return L of each client, (clients,), where `total` is L_CE."""
        assert isinstance(model, Model)
        strong = graphs.view(self.strong)
        h = model.embed(strong, graphs.generator)  # (nodes, width)
        weak = graphs.view(self.weak)
        with torch.no_grad(), replaced(model, frozen()):
            frozen_h = model.embed(weak, None)
            frozen_z = model.classify(weak, frozen_h, None) if self.lambda_d else None
        if self.lambda_c:
            sides = zip(clients, graphs.apart(h), graphs.apart(frozen_h), graphs.draws, strict=True)
            total = total + self.lambda_c * torch.stack([self._contrast(*side) for side in sides])
        if frozen_z is not None:
            z = model.classify(strong, h, graphs.generator)  # (nodes, classes)
            each = structure_divergence(z, frozen_z, graphs.whole.operator("sum"), self.omega)
            total = total + self.lambda_d * graphs.means(each)
        return total

    def _contrast(self, client: GraphClient, h: Tensor, frozen_h: Tensor, generator: torch.Generator) -> Tensor:
        """Return L_FNSC of one client."""
        train, labels = client.prepared.index["train"], client.prepared.labels["train"]
        drawn = None  # the places among training nodes of those that all are contrasted with
        if len(train) > self.max_contrast:
            drawn = torch.randperm(len(train), generator=generator)[: self.max_contrast].to(train.device)
        return node_contrast(h[train], frozen_h[train], labels, self.tau, sample=drawn)


def structure_divergence(z: Tensor, teacher: Tensor, neighbors: SparseMatrix, omega: float) -> Tensor:
    """Return L_i for each node, (nodes,); 0 for nodes with one neighbour or none. No gradient flows into `teacher`.

    z and teacher are (nodes, classes). Of `neighbors`, (nodes, nodes), the values play no part.
    """
    pattern = neighbors.pattern
    teacher = teacher.detach()
    theirs = row_log_softmax(pattern, neighbors.sample(teacher, teacher) / omega)
    mine = row_log_softmax(pattern, neighbors.sample(z, z) / omega)
    return z.new_zeros(len(z)).index_add(0, pattern.row, theirs.exp() * (theirs - mine))


def row_log_softmax(pattern: Pattern, scores: Tensor) -> Tensor:
    """Return the logarithm of the softmax of the scores within each row of the pattern, (entries,)."""
    rows = pattern.row.long()
    largest = scores.new_zeros(pattern.shape[0]).scatter_reduce_(0, rows, scores.detach(), "amax", include_self=False)
    centred = scores - largest.index_select(0, rows)
    sums = scores.new_zeros(pattern.shape[0]).index_add(0, rows, centred.exp())
    return centred - sums.log().index_select(0, rows)
