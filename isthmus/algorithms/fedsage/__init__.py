"""FedSage+: every client learns to generate the neighbours that it lacks, mends its graph, and trains by FedAvg.

Zhang, Yang, Li, Sun and Yiu (2021), "Subgraph federated learning with missing neighbor generation"; its exchanges as
in FS-G (Wang et al., 2022, Fig. 3). The paper's FedSage, without the plus, is FedAvg with GraphSAGE as the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from isthmus.algorithms.fedavg import FedAvg
from isthmus.algorithms.fedsage.grading import Grades
from isthmus.algorithms.fedsage.messages import (
    FEATURES,
    GeneratorGradients,
    GeneratorView,
    GradeGenerators,
    MendedGraph,
    MendGraph,
    PretrainGenerator,
    ShareGenerator,
    UpdateGenerator,
)
from isthmus.algorithms.fedsage.neighbor_generation import (
    Generated,
    Impaired,
    KeptNoise,
    NeighborGenerator,
    Noise,
    count_loss,
    draw_hidden,
    feature_loss,
    foreign_loss,
    generate,
    generated_features,
    mended,
)
from isthmus.core.client import NotTogether
from isthmus.core.errors import BadInput, refuse
from isthmus.core.federation import Federation
from isthmus.core.folds import weighted_mean
from isthmus.core.outside import named
from isthmus.core.protocol import EvaluateModel, Evaluation, Kept, ModelState, cohort, on, unlike
from isthmus.core.random import ProtectingStream, seeded
from isthmus.core.record import Params
from isthmus.core.replies import Stack
from isthmus.learn.able import require_classes_of_nodes
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.optimizers import Adam, Optimizer, copied, load_params, read_params, take_step
from isthmus.learn.tasks.node_classification import NodeBatch, PreparedNodes
from isthmus.learn.tasks.task import Predictions
from isthmus.learn.together.stacked_clients import GraphCohort

Memory = dict[str, Any]

# The name of the noise's seed among what a client needs to predict; the others are the generator's.
NOISE = "noise"
GENERATES = "FedSage+ generates neighbours of nodes that are classified"


@dataclass(frozen=True)
class FedSagePlus(FedAvg):
    """Clients generate the neighbours that they lack, with generators trained across clients, then train by FedAvg.

        setup:  server -> client  PretrainGenerator(params)
                client -> server  Kept()
                cross_rounds times:
                server -> client  ShareGenerator(latent, hidden, num_generated)
                client -> server  GeneratorView(params, inputs, counts)    the server sees each client's
                server -> client  GradeGenerators(views)                   all clients', to all
                client -> server  GeneratorGradients(gradients, weight)    the server sees only the mean
                server -> client  UpdateGenerator(gradients)               the sum of what the peers found for it
                client -> server  Kept()
                server -> client  MendGraph()
                client -> server  MendedGraph(num_generated, num_nodes, weight)    the server sees only the mean
        round:  server -> client  TrainModel(params)
                client -> server  ModelUpdate(params, weight)              the server sees only the weighted mean

    Client i hides a share of its nodes and keeps V, the visible ones. Its generator reads the graph of V: an encoder
    (GraphSAGE) gives embeddings z_v, dGen the number n~_v of missing neighbours, rounded, from 0 to `num_generated`,
    and fGen the features x_v^p, p = 1 ... n~_v, of z_v with Gaussian noise. It minimises

        count_weight / |V| sum_v smoothL1(n~_v - n_v)           n_v: number of hidden neighbours; n~_v not rounded here
        + feature_weight / |V| sum_v sum_p ( min_{u hidden neighbour of v} |x_v^p - x_u|^2
                                             + peer_weight sum_{j != i} min_{u in V_j} |x_v^p - x_u|^2 )
        + class_weight * cross-entropy of a classifier on the visible training nodes, with generated neighbours

    at first without the peers' term (`pretrain_steps`), then with it, one step in each of `cross_rounds`. V_j are all
    nodes of client j; where v has no hidden neighbours, there is no first minimum. The peers' term moves fGen alone,
    since its gradient comes from peer j, who has fGen and the embeddings but not the encoder: gradients by embeddings
    would tell of single nodes of j. The classifier of the third term is the course's model, trained on the client alone
    and forgotten afterwards. The paper has a relu after dGen and an activation after fGen; here both are linear, and
    negative numbers of neighbours are none.

    Then the generator reads the client's whole graph, and what it gives is added: each generated node is a neighbour of
    one own node and has no label. Generated features are dense, and all of them are held. Models are trained, and
    evaluated, on the mended graphs, on own nodes. A client that missed the setup trains on its graph as it is. With
    num_generated = 0 this is FedAvg.

    Features of nodes never cross. What the server and every peer learn of client i: fGen, which knows what features are
    typical of its nodes, and noisy embeddings of its visible nodes that lack neighbours, with the numbers. Only the
    noise, and a `latent` well below the number of features, keep embeddings from telling these. Which nodes are hidden
    and the noise are drawn from the client's own secret, which neither server nor peers have; the noise is another one
    in each of `cross_rounds`, so that the mean of a node's embeddings has less of it the more there are. What client i
    learns of the others: the sum of their gradients, which says how the nearest of their nodes differ from what it
    generates. This is no proof against a client that wants to know: where no more of its nodes are given neighbours in
    a step than fGen's hidden layer has columns (`max_nodes`, or a small graph), the equations have one solution, the
    sum over peers of the nearest features. With two clients that is the one peer's features. The server, which has the
    view too, can solve the same equations for the same sum.

    A client's memory: `neighgen` during the setup (generator, classifier, moments, which nodes are hidden), afterwards
    `mended`: the generator and a seed of its noise, drawn from the secret, from which the same neighbours are made
    again. In simulation both are in the result (`client_parts`) and in the run folder, and `isthmus predict --client
    ID` mends the graph that it is given with that client's generator; without --client, it reads the graph as it is.
    Between sites, generators stay in the silos' memories.

    Fields beside those of `FedAvg`, which are about the rounds:
        num_generated:  neighbours that a node can be given at most; 0 for none
        hide_fraction:  share of a client's nodes that is hidden to learn from
        latent:         columns of the embeddings
        hidden:         width of fGen's hidden layer
        pretrain_steps: steps of each generator on the client's own graph
        cross_rounds:   steps with gradients from peers; 0 leaves every generator alone
        count_weight, feature_weight, peer_weight, class_weight: the lambdas and alpha of the loss
        generator_optimizer: what trains generators, through the whole setup
        max_nodes:      in a step, at most so many visible nodes, drawn at random, are given neighbours, and |V| is that
                        number in the second term; so memory is bounded by max_nodes x num_generated x features.
                        0 for all nodes
    """

    num_generated: int = 5
    hide_fraction: float = 0.5
    latent: int = 64
    hidden: int = 64
    pretrain_steps: int = 50
    cross_rounds: int = 5
    count_weight: float = 1.0
    feature_weight: float = 1.0
    peer_weight: float = 1.0
    class_weight: float = 1.0
    generator_optimizer: Optimizer = Adam(lr=0.01)
    max_nodes: int = 5000

    protects: ClassVar[Mapping[str, Literal["more", "less"]]] = {"latent": "less"}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in _LEAST.items():
            value = getattr(self, name)
            refuse(isinstance(value, bool) or value < least, self, name, f"it must be at least {least}")
        refuse(not 0.0 < self.hide_fraction < 1.0, self, "hide_fraction", "it must be between 0 and 1")
        for name in ("count_weight", "feature_weight", "class_weight"):
            refuse(not 0.0 <= getattr(self, name) < float("inf"), self, name, "it must be at least 0")
        wanted = "it must be above 0 (cross_rounds=0: generators learn alone)"
        refuse(not 0.0 < self.peer_weight < float("inf"), self, "peer_weight", wanted)

    def num_own_parameters(self, model: Any, input_dim: int) -> int:
        """Return the size of a generator: its encoder (two layers of GraphSAGE), dGen and fGen."""
        encoder = 2 * self.latent * (input_dim + self.latent)
        slots = self.num_generated * (self.hidden + 1) * input_dim
        return encoder + self.latent * self.hidden + slots

    @property
    def protecting_streams(self) -> tuple[str, ...]:
        """Which nodes are hidden, and the noise on embeddings."""
        return ("hidden nodes", "noise") if self.num_generated else ()

    def require_able(self, client: GraphClient) -> None:
        """Refuse tasks that are not about nodes, where neighbours are generated."""
        if self.num_generated:
            require_classes_of_nodes(client, GENERATES)

    # ---- server

    def setup(self, fed: Federation) -> ModelState:
        """Train the generators, alone and then across clients, and have the graphs mended."""
        if self.num_generated:
            able = tuple(fed.ask(PretrainGenerator(fed.initial_params)))
            if len(able) == 2 and self.cross_rounds:
                fed.note(
                    "there are two clients: what a peer finds goes to the other unmixed, which may tell its features"
                )
            for _ in range(self.cross_rounds):
                self._train_across(able, fed)
            mean = fed.ask_folded(MendGraph(), weighted_mean, clients=able)
            fed.note(
                f"{mean.weight:g} clients mended their graphs: on average {mean.num_generated:.1f} generated "
                f"neighbours for {mean.num_nodes:.1f} nodes"
            )
        return ModelState(fed.initial_params)

    def _train_across(self, able: tuple[str, ...], fed: Federation) -> None:
        """Take one step with every generator, in the direction that its own client and all peers wish."""
        views = dict(fed.ask(ShareGenerator(self.latent, self.hidden, self.num_generated), clients=able))
        mean = fed.ask_folded(GradeGenerators(views), weighted_mean, clients=tuple(views))
        sums = {
            client: {name: tensor * mean.weight for name, tensor in gradients.items()}
            for client, gradients in mean.gradients.items()
        }
        fed.ask({client: UpdateGenerator(gradients) for client, gradients in sums.items()})

    # ---- client: the generator

    @on(PretrainGenerator)
    def pretrain(self, request: PretrainGenerator, client: GraphClient) -> Kept:
        """Hide nodes, and train a new generator on them."""
        require_classes_of_nodes(client, GENERATES)
        if not self.num_generated:
            raise BadInput(f"{client.id} generates no neighbours (num_generated is 0) and keeps its graph as it is")
        with seeded(client.generator("generator").initial_seed(), "generator"):
            model = self._build(client.data.num_features).to(client.device)
        live = self._live(model, client)
        hidden = draw_hidden(client.num_nodes, self.hide_fraction, client.protecting("hidden nodes", None))
        memory: Memory = {
            "hidden": hidden.to(client.device),
            "params": read_params(model),
            "classifier": client.complete(request.params) if self.class_weight else {},
            "optimizer": self.generator_optimizer.start(live),
        }
        noise = client.protecting("noise", None)
        client.state["neighgen"] = self._stepped(client, memory, self.pretrain_steps, noise, {})
        return Kept()

    @on(ShareGenerator)
    def share_generator(self, request: ShareGenerator, client: GraphClient) -> GeneratorView:
        """Show the feature generator and what it is given; the noise is kept for the step that follows."""
        memory = _training(client)
        model = self._loaded(client.data.num_features, memory["params"])
        visible = Impaired.of(client.data, memory["hidden"]).input
        with torch.no_grad():
            noise = client.protecting("noise", model.encoder(visible, None))
            kept = noise.to_keep()
            found = generate(model, visible, noise, self.max_nodes)
        client.state["neighgen"] = {**memory, "noise": kept}
        lacking = found.counts.nonzero().flatten()
        return GeneratorView(read_params(model.features), found.inputs[lacking], found.counts[lacking])

    @on(GradeGenerators)
    def grade(self, request: GradeGenerators, client: GraphClient) -> GeneratorGradients:
        """Return for every peer's generator which way leads to this client's nodes."""
        asked = ShareGenerator(self.latent, self.hidden, self.num_generated)
        for peer, view in request.views.items():
            if problem := asked.problem(view):  # whoever sent it: its shapes say how much is computed
                raise BadInput(f"the view of {named(peer)} is none of this course: {problem}")
        gradients = {
            peer: {name: torch.zeros_like(tensor) for name, tensor in view.params.items()}
            if peer == client.id
            else foreign_gradients(view, client)
            for peer, view in request.views.items()
        }
        return GeneratorGradients(gradients, 1.0)

    @cohort(GradeGenerators)
    def grade_together(self, requests: Sequence[GradeGenerators], clients: GraphCohort) -> Stack:
        """Do the same for many clients: what peers generate is made once, and sums are taken before ways back."""
        views, asked = requests[0].views, ShareGenerator(self.latent, self.hidden, self.num_generated)
        if any(request.views is not views for request in requests) or any(map(asked.problem, views.values())):
            raise NotTogether("views are to be looked at by each client")
        grades = Grades(views, clients.clients, lambda k: self.grade(requests[k], clients.clients[k]).gradients)
        return Stack.of(clients.ids, GeneratorGradients, gradients=grades.stacked(), weight=1.0)

    @on(UpdateGenerator)
    def update(self, request: UpdateGenerator, client: GraphClient) -> Kept:
        """Take a step down the client's own loss and what the peers found."""
        memory = _training(client)
        features = {name: tensor for name, tensor in memory["params"].items() if name.startswith(FEATURES)}
        own = {name.removeprefix(FEATURES): tensor for name, tensor in features.items()}
        problem = unlike("gradients", own, request.gradients) if request.gradients else ""
        if problem:
            raise BadInput(f"the peers' gradients do not belong to {client.id}'s generator: {problem}")
        noise = ProtectingStream.kept(memory["noise"])
        client.state["neighgen"] = self._stepped(client, memory, 1, noise, request.gradients)
        return Kept()

    @on(MendGraph)
    def mend(self, request: MendGraph, client: GraphClient) -> MendedGraph:
        """Keep the generator for good, with a seed for its noise; what only its training needed is forgotten."""
        memory: Memory = {"params": _training(client)["params"], "noise": client.protecting("noise", None).seed()}
        client.state = {name: value for name, value in client.state.items() if name != "neighgen"}
        client.state["mended"] = memory
        added = self.data_of(client).graph.num_nodes - client.num_nodes
        return MendedGraph(float(added), float(client.num_nodes), 1.0)

    def _stepped(self, client: GraphClient, memory: Memory, steps: int, noise: Noise, peers: Params) -> Memory:
        """Return what a client remembers after some steps of its generator; `peers` are their gradients, or empty."""
        model = self._loaded(client.data.num_features, memory["params"])
        if self.class_weight:
            load_params(client.model, memory["classifier"])
        live, state = self._live(model, client), copied(memory["optimizer"])
        optimizer = self.generator_optimizer
        impaired = Impaired.of(client.data, memory["hidden"])
        drops = client.generator("classifier")
        for _ in range(steps):
            found = generate(model, impaired.input, noise, self.max_nodes)
            loss = self._own_loss(found, impaired, client, drops)
            if peers:
                # The gradient of a sum of products with constants is those constants.
                wish = sum((slot * peers[name]).sum() for name, slot in model.features.named_parameters())
                loss = loss + self.feature_weight * self.peer_weight / max(found.num_nodes, 1) * wish
            take_step(live, loss, optimizer, state, optimizer.lr * optimizer.schedule.factor(1))
        classifier = read_params(client.model) if self.class_weight else {}
        return {**memory, "params": read_params(model), "classifier": classifier, "optimizer": state}

    def _own_loss(self, found: Generated, impaired: Impaired, client: GraphClient, drops: torch.Generator) -> Tensor:
        """Return the loss without the peers' term; `drops` is for the classifier's dropout."""
        loss = self.count_weight * count_loss(found.scores, impaired.counts)
        loss = loss + self.feature_weight * feature_loss(found, impaired)
        if self.class_weight:
            prepared = client.task.prepare(mended(impaired.graph, found.rows, found.owner))
            index, labels = prepared.index["train"], prepared.labels["train"]
            if len(index):
                batch = NodeBatch(prepared.graph, index, labels)
                loss = loss + self.class_weight * client.task.loss(client.model, batch, drops)
        return loss

    def _live(self, model: NeighborGenerator, client: GraphClient) -> list[Tensor]:
        """Return the parameters that the generator's training moves."""
        modules: list[nn.Module] = [model, client.model] if self.class_weight else [model]
        return [slot for module in modules for slot in module.parameters() if slot.requires_grad]

    def _build(self, num_features: int) -> NeighborGenerator:
        return NeighborGenerator(num_features, self.latent, self.hidden, self.num_generated)

    def _loaded(self, num_features: int, params: Params) -> NeighborGenerator:
        with torch.random.fork_rng(devices=[]):  # what is drawn is replaced at once
            model = self._build(num_features)
        load_params(model, params)
        return model.to(next(iter(params.values())).device)

    # ---- client: the rounds

    def data_of(self, client: GraphClient) -> PreparedNodes:
        """Return a client's data with its graph mended, as far as it is; built once and kept with its own data."""
        own: Any = client.prepared
        memory: Memory | None = client.state.get("mended")
        if memory is None:
            return own  # type: ignore[no-any-return]
        kept = getattr(own, "mended", None)
        if kept is None or kept[0] is not memory:
            kept = own.mended = (memory, self._mended(client.task, own, memory))
        return kept[1]  # type: ignore[no-any-return]

    def _mended(self, task: Any, own: Any, memory: Memory) -> Any:
        """Return prepared data with the neighbours that a generator gives; the very same where it gives none."""
        model = self._loaded(own.data.num_features, memory["params"])
        with torch.no_grad():
            found = generate(model, own.graph, KeptNoise(memory["noise"]))
        return task.prepare(mended(own.data, found.rows, found.owner)) if len(found.rows) else own

    def client_parts(self, state: Mapping[str, Any]) -> Params:
        """Return the client's generator and the seed of its noise, as far as it mended its graph."""
        memory: Memory | None = state.get("mended")
        return {} if memory is None else {**memory["params"], NOISE: torch.tensor(memory["noise"])}

    def predict_with(self, parts: Params, task: Any, model: Any, data: Any) -> Predictions:
        """Mend the graph with a client's generator, and return what the model says of the graph's own nodes."""
        prepared = task.prepare(data)
        if parts:
            params = {name: tensor for name, tensor in parts.items() if name != NOISE}
            prepared = self._mended(task, prepared, {"params": params, "noise": int(parts[NOISE])})
        found: Predictions = task.predict(model, prepared)
        return replace(found, ids=found.ids[: data.num_nodes], probabilities=found.probabilities[: data.num_nodes])

    @on(EvaluateModel)
    def evaluate(self, request: EvaluateModel, client: GraphClient) -> Evaluation:
        """Evaluate the client's model on its own nodes in the mended graph."""
        memory = self.best_memory(client.state) if request.best else client.state
        params = self.client_params(request.params, memory)
        return Evaluation(*client.evaluate(params, request.splits, self.data_of(client)))


# The least that each count may be.
_LEAST = {"num_generated": 0, "latent": 1, "hidden": 1, "pretrain_steps": 0, "cross_rounds": 0, "max_nodes": 0}


def foreign_gradients(view: GeneratorView, client: GraphClient) -> Params:
    """Return the gradient of sum_v sum_p min_u |x_v^p - x_u|^2 by a peer's fGen, over the client's own nodes u."""
    columns = view.params["slot_weight"].shape[2]
    if columns != client.data.num_features:
        raise BadInput(
            f"a peer generates nodes of {columns} features, {client.id}'s have {client.data.num_features}; "
            "FedSage+ compares them: all clients need the same features"
        )
    slots = {name: tensor.detach().requires_grad_() for name, tensor in view.params.items()}
    rows, _ = generated_features(slots, view.inputs, view.counts)
    loss = foreign_loss(rows, client.data.x, client.prepared.graph.x)
    return dict(zip(slots, torch.autograd.grad(loss, list(slots.values())), strict=True))


def _training(client: GraphClient) -> Memory:
    memory: Memory | None = client.state.get("neighgen")
    if memory is None:
        raise BadInput(f"{client.id} has no generator in training: it missed PretrainGenerator")
    return memory
