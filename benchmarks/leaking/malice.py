"""Malicious clients that plant backdoors and poison, and malicious servers that send models made to read clients.

The model that is scored is that of the last round, so nothing is chosen by validation. Attacks, folds and checks are as
they are by default but for what stands here; the settings of the courses were tried on seeds 100 and 101.
"""

from __future__ import annotations

import isthmus as ist
from isthmus.algorithms import FedSagePlus
from isthmus.attacks import DeadModel, ReadRows
from isthmus.attacks.audit.running import Carried
from isthmus.attacks.audit.spec import Guards, guards_told, told
from isthmus.attacks.audit.table import Found, Mean, findings
from isthmus.attacks.poisoning import (
    FreeRider,
    LabelFlip,
    SignFlip,
    SubgraphTrigger,
    Trigger,
    WrongEdges,
    WrongGradients,
)
from isthmus.attacks.spoiling import CLEAN_ACCURACY, SUCCESS
from isthmus.core.folding import (
    Bulyan,
    CentredClipping,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Median,
    TrimmedMean,
)
from isthmus.core.training import EarlyStopping
from isthmus.data.splitters import RandomSplitter
from isthmus.data.zoo.tu import PROTEINS
from isthmus.learn.batching import MiniBatch
from isthmus.learn.optimizers import SGD, Adam
from isthmus.learn.tasks import GraphClassification
from isthmus.models import GCN, GIN, MLP, SAGE, MLPDecoder, ModelSpec
from isthmus.models.readouts import SumReadout
from isthmus.privacy import (
    ClientDP,
    DistanceToMedian,
    NoRepeats,
    NormBound,
    Quarantine,
    RobustFold,
    SaneModel,
    SecureSum,
)
from isthmus.report.summary import Table
from leaking.section import DATASETS, Section

LAST = EarlyStopping(patience=0, keep="last")
# What the server has of its own for FLTrust: so much of the data, at random, beside what clients hold.
SHARE = 0.05
RADIUS = 0.5


def nodes(**fields: object) -> ist.Course:
    """Return FedAvg as it is by default, of 25 rounds."""
    return ist.Course(rounds=25, evaluate_every=25, stopping=LAST, server_share=SHARE, **fields)


def narrow(**fields: object) -> ist.Course:
    """Return the same with a hidden layer of 16: folds that compare all with all are slow for many clients."""
    return nodes(model=ModelSpec(GCN(hidden=16)), **fields)


def graphs(**fields: object) -> ist.Course:
    """Return FedAvg on graphs that are divided at random: GIN, a pass over the data a round, by Adam."""
    return ist.Course(
        rounds=20,
        evaluate_every=20,
        stopping=LAST,
        splitter=RandomSplitter(),
        task=GraphClassification(),
        batching=MiniBatch(),
        model=ModelSpec(GIN(hidden=32, dropout=0.0), readout=SumReadout(), decoder=MLPDecoder()),
        algorithm=ist.FedAvg(local_steps=1, step_unit="epoch", optimizer=Adam(lr=0.01)),
        **fields,
    )


def crafted(**fields: object) -> ist.Course:
    """Return FedAvg with one step of plain SGD a round, of an MLP on features."""
    algorithm = ist.FedAvg(local_steps=1, optimizer=SGD(lr=0.25), weighting="uniform")
    model = ModelSpec(MLP(dropout=0.0))
    return ist.Course(rounds=5, evaluate_every=5, stopping=LAST, algorithm=algorithm, model=model, **fields)


def mending(**fields: object) -> ist.Course:
    """Return FedSage+ with ten rounds in which generators are trained across clients."""
    algorithm = FedSagePlus(cross_rounds=10)
    model = ModelSpec(SAGE(hidden=32, dropout=0.3))
    return ist.Course(rounds=5, evaluate_every=5, stopping=LAST, algorithm=algorithm, model=model, **fields)


def beside_each_other(carried: Carried) -> Table:
    """Return a row for each list of guards: accuracy without attack; success (without) / accuracy; in %."""
    attacks = carried.audit.attacks
    rows = []
    for guards in carried.audit.lines:
        found = {each.attack: each for each in findings(carried) if each.guards == guards_told(guards)}
        if found:
            clean = next(iter(found.values())).priors[CLEAN_ACCURACY]
            rows.append((label(guards), _percent(clean), *(_cell(found.get(attack)) for attack in attacks)))
    return Table(("fold or check", "nobody", *map(told, attacks)), tuple(rows))


def label(guards: Guards) -> str:
    """Return a list of guards in a few words: a fold by its own name."""
    names = [told(guard.by) if isinstance(guard, RobustFold) else told(guard) for guard in guards]
    return ", ".join(names) or "mean"


def _cell(found: Found | None) -> str:
    if found is None:
        return "-"
    score = found.scores[SUCCESS]
    more = (
        "" if score.number == found.priors[SUCCESS].number else f" ({score.number} of {found.priors[SUCCESS].number})"
    )
    prior = _percent(found.priors[SUCCESS])
    return f"{_percent(score)} ({prior}) / {_percent(found.scores[CLEAN_ACCURACY])}{more}"


def _percent(mean: Mean) -> str:
    return f"{100.0 * mean.value:.1f}" if mean.number else "no model"


def folds(malicious: int, clients: int) -> tuple[Guards, ...]:
    """Return the folds that can be had with so many clients, told how many are malicious at most."""
    byzantine = min(malicious, (clients - 3) // 2)
    found: list[Guards] = [
        (),
        (RobustFold(Median()),),
        (RobustFold(TrimmedMean(0.2)),),
        (RobustFold(Krum(byzantine)),),
        (RobustFold(Krum(byzantine, num_selected=clients - 2 * byzantine)),),
    ]
    if clients >= 4 * malicious + 3:
        found.append((RobustFold(Bulyan(malicious)),))
    return (
        *found,
        (RobustFold(GeometricMedian()),),
        (RobustFold(CentredClipping(RADIUS)),),
        (RobustFold(FoolsGold()),),
    )


CHECKS: tuple[Guards, ...] = (
    (NormBound(times_median=3.0), Quarantine(after=5)),
    (DistanceToMedian(times=3.0), Quarantine(after=5)),
    (NoRepeats(),),
    (SaneModel(),),
)
FLTRUST: tuple[Guards, ...] = ((RobustFold(FLTrust(root="server")),),)
CORA, CITESEER = ({name: DATASETS[name]} for name in ("cora", "citeseer"))
FEW = (Trigger(malicious=1), Trigger(malicious=2), LabelFlip(malicious=2))
MANY = (Trigger(malicious=5), LabelFlip(malicious=5))
OTHER = (
    Trigger(malicious=1, scale=5.0),
    Trigger(malicious=2, distributed=True, columns=(0, 1, 2, 3)),
    SubgraphTrigger(malicious=1, columns=(0, 1, 2)),
    SignFlip(malicious=1),
    WrongEdges(malicious=2),
    FreeRider(malicious=2, disguised=False),
    FreeRider(malicious=2),
)

SECTIONS = {
    "crafted": Section(
        "Models that a malicious server made to read clients",
        crafted,
        (ReadRows(), ReadRows(from_round=3), ReadRows(kind="traps"), ReadRows(kind="traps", from_round=3), DeadModel()),
        ((), (SaneModel(),), (SecureSum(),), (ClientDP(clip=0.1, noise=1.0, mode="local"),)),
        CORA,
        (50,),
    ),
    "poison-few": Section(
        "Malicious clients, 1 and 2 of 5",
        nodes,
        FEW,
        (*folds(1, 5), *FLTRUST, *CHECKS),
        CORA,
        (5,),
        layout=beside_each_other,
    ),
    "poison-graphs": Section(
        "Malicious clients, 1 and 2 of 5, that plant small graphs",
        graphs,
        tuple(
            SubgraphTrigger(malicious=number, distributed=apart, target=1, fraction=0.2)
            for number, apart in ((1, False), (2, True))
        ),
        (*folds(1, 5), *CHECKS[:2]),
        {"proteins": PROTEINS(normalize_features=True)},
        (5,),
        layout=beside_each_other,
    ),
    "poison-many": Section(
        "Malicious clients, 5 of 50",
        narrow,
        MANY,
        (*folds(5, 50), *FLTRUST, *CHECKS),
        CORA,
        (50,),
        layout=beside_each_other,
    ),
    "poison-other": Section(
        "Malicious clients, 1 and 2 of 5, that poison otherwise",
        nodes,
        OTHER,
        ((), (RobustFold(Median()),), (RobustFold(GeometricMedian()),), *CHECKS[:3]),
        CORA,
        (5,),
        layout=beside_each_other,
    ),
    "poison-generators": Section(
        "Malicious clients, 1 and 2 of 5, that turn the others' generators",
        mending,
        (WrongGradients(malicious=1, columns=(0, 1, 2)), WrongGradients(malicious=2, columns=(0, 1, 2), times=1000.0)),
        (
            (),
            (NormBound(times_median=3.0, requests=("GradeGenerators",)),),
            (RobustFold(Median(), requests=("GradeGenerators",)),),
        ),
        CORA,
        (5,),
        layout=beside_each_other,
    ),
    "poison-citeseer": Section(
        "Malicious clients, 1 and 2 of 5",
        nodes,
        FEW,
        (*folds(1, 5), *FLTRUST, *CHECKS),
        CITESEER,
        (5,),
        layout=beside_each_other,
    ),
}
