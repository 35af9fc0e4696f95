"""What single methods send that no other does."""

from __future__ import annotations

from dataclasses import replace

import isthmus as ist
from isthmus.algorithms import GFLAPPNP, FedGL, FedGNN, FedNova, FedSagePlus, Scaffold
from isthmus.attacks import (
    GeneratedFeatures,
    GeneratedNodes,
    HiddenGradients,
    LabelsFromRows,
    LabelShares,
    LinksFromRows,
    PeersNearest,
    RatedItems,
    UsersByEmbeddings,
    VariateLabels,
    VariateWords,
    Vocabulary,
)
from isthmus.config.load import load_course
from isthmus.data.zoo.cora import Cora
from isthmus.learn.optimizers import Adam
from isthmus.privacy import RowNoise, SecureSum
from leaking.every import NEEDS
from leaking.section import Section

SMALL = {"cora": Cora()}


def _course(method: str, *words: str) -> ist.Course:
    found = load_course(None, [f"algorithm.name={method}", *NEEDS.get(method, ()), *words], say=lambda text: None)
    return replace(found, evaluate_every=found.rounds)


def sage(**fields: object) -> ist.Course:
    """Return FedSage+ as it is by default."""
    return replace(_course("fedsage_plus", "rounds=1"), **fields)  # type: ignore[arg-type]


def sage_of_few(**fields: object) -> ist.Course:
    """Return FedSage+ whose generators give neighbours to forty nodes of a client in a step."""
    return replace(sage(**fields), algorithm=FedSagePlus(max_nodes=40))


def ratings(**fields: object) -> ist.Course:
    """Return FedGNN on generated ratings of 60 users and 50 items in two domains, by hashed ids."""
    found = _course(
        "fedgnn", "rounds=20", "dataset.user_buckets=4096", "dataset.item_buckets=4096", "algorithm.pseudo_items=100"
    )
    return replace(found, **{**fields, "dataset": found.dataset})  # type: ignore[arg-type]


def vague_ratings(**fields: object) -> ist.Course:
    """Return the same with noise on users' embeddings and few buckets."""
    found = _course("fedgnn", "rounds=20")
    algorithm = FedGNN(pseudo_items=10, embedding_noise=0.2)
    return replace(found, algorithm=algorithm, **{**fields, "dataset": found.dataset})  # type: ignore[arg-type]


def hosts(**fields: object) -> ist.Course:
    """Return GFL-APPNP as it is by default, on generated data each of whose nodes is a client with some samples."""
    found = _course("gfl_appnp", "rounds=3")
    return replace(found, **{**fields, "dataset": found.dataset})  # type: ignore[arg-type]


def noisy_hosts(**fields: object) -> ist.Course:
    """Return the same with noise on gradients, the paper's V1."""
    return replace(hosts(**fields), algorithm=GFLAPPNP(noise_std=1.0))


def hosts_of_many(**fields: object) -> ist.Course:
    """Return GFL-APPNP where a few clients host all nodes of a graph."""
    found = _course("gfl_appnp", "rounds=20")
    usual = ist.Course()
    return replace(
        found,
        **{**fields, "masks": usual.masks, "task": usual.task, "stopping": usual.stopping},  # type: ignore[arg-type]
    )


def views(**fields: object) -> ist.Course:
    """Return FedGL as it is by default, on clients that have nodes in common."""
    return replace(_course("fedgl", "rounds=30"), **fields)  # type: ignore[arg-type]


def plain_views(**fields: object) -> ist.Course:
    """Return its first rounds without weight decay, which with Adam moves all weights by no common factor."""
    found = views(**fields)
    return replace(found, rounds=2, algorithm=FedGL(optimizer=Adam(lr=0.01, weight_decay=0.0)))


def encoders(**fields: object) -> ist.Course:
    """Return FedGRL, whose encoders learn from graphs without labels."""
    return replace(_course("fedgrl", "rounds=2"), **fields)  # type: ignore[arg-type]


def clusters(**fields: object) -> ist.Course:
    """Return GCFL+ as it is by default."""
    return replace(_course("gcfl_plus", "rounds=2"), **fields)  # type: ignore[arg-type]


def changes(**fields: object) -> ist.Course:
    """Return FedNova as it is by default, for the round that is looked at."""
    return ist.Course(rounds=1, algorithm=FedNova(), **fields)


def variates(**fields: object) -> ist.Course:
    """Return SCAFFOLD as it is by default, for the round that is looked at."""
    return ist.Course(rounds=1, algorithm=Scaffold(), **fields)


def variates_of_adam(**fields: object) -> ist.Course:
    """Return SCAFFOLD by Adam, whose steps hide how large gradients were."""
    return replace(variates(**fields), algorithm=Scaffold(optimizer=Adam(lr=0.01)))


SUMMED = ((), (SecureSum(),))
SECTIONS = {
    "changes": Section("FedNova: changes in each step", changes, (Vocabulary(), LabelShares()), SUMMED),
    "variates": Section("SCAFFOLD: changes of control variates", variates, (VariateWords(), VariateLabels()), SUMMED),
    "variates_adam": Section(
        "SCAFFOLD by Adam: changes of control variates", variates_of_adam, (VariateWords(), VariateLabels()), SUMMED
    ),
    "sage": Section(
        "FedSage+: generators and what comes back for them",
        sage,
        (GeneratedFeatures(), GeneratedNodes(), PeersNearest()),
        ((),),
        SMALL,
        (2, 5),
    ),
    "sage_few": Section(
        "FedSage+, neighbours for forty nodes of a client in a step",
        sage_of_few,
        (PeersNearest(),),
        ((),),
        SMALL,
        (2, 5),
    ),
    "ratings": Section(
        "FedGNN: rows of the table, and users",
        ratings,
        (RatedItems(rounds=1), RatedItems(), UsersByEmbeddings()),
        ((),),
        {"csr": Cora()},
        (20,),
    ),
    "vague_ratings": Section(
        "FedGNN, few buckets and noise on embeddings",
        vague_ratings,
        (UsersByEmbeddings(),),
        ((),),
        {"csr": Cora()},
        (5,),
    ),
    "hosts": Section(
        "GFL-APPNP: gradients of hidden representations, and these",
        hosts,
        (HiddenGradients(), LabelsFromRows()),
        ((), (RowNoise(noise=1.0),)),
        {"csbm": Cora()},
        (200,),
    ),
    "noisy_hosts": Section(
        "GFL-APPNP, noise of deviation 1 on gradients",
        noisy_hosts,
        (HiddenGradients(),),
        ((),),
        {"csbm": Cora()},
        (200,),
    ),
    "hidden": Section(
        "GFL-APPNP, five clients host all nodes", hosts_of_many, (LinksFromRows(), LabelsFromRows()), ((),), SMALL, (5,)
    ),
    "views": Section(
        "FedGL: predictions of each client", views, (LabelsFromRows(),), ((), (RowNoise(noise=1.0),)), SMALL, (5,)
    ),
    "view_words": Section(
        "FedGL without weight decay: parameters of each client", plain_views, (Vocabulary(),), ((),), SMALL, (5,)
    ),
    "encoders": Section("FedGRL: an encoder's update", encoders, (Vocabulary(),), ((),), SMALL, (5,)),
    "clusters": Section("GCFL+: updates", clusters, (Vocabulary(), LabelShares()), ((),), SMALL, (5, 50)),
}
