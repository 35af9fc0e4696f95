"""FedBN: one pattern names every norm of every model, and what it names is in no message."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from isthmus import run
from isthmus.config.course import Course
from isthmus.core.codec import encode
from isthmus.core.protocol import Request
from isthmus.core.record import Record, leaves
from isthmus.models import DECODERS, ENCODERS, GCN, GIN, GNNS, READOUTS, MLPDecoder, Model, ModelSpec
from isthmus.models.model import shared_names
from isthmus.models.parts import BatchNorm, GNNSpec
from isthmus.testing.toys import toy_course, toy_scenario
from tests.quick import quick
from tests.runs.personal.wire import Wire

PAGE = (Path(__file__).parents[3] / "docs" / "personalisation.md").read_text()
FED_BN = ("*", "!*.norm*")


def with_all_norms(kind: type[Any]) -> Any:
    """Return a part with every norm that it can have."""
    made: Any = kind()
    wanted = {"batch_norm", "mlp_norm"} & {field.name for field in fields(kind)}
    return replace(made, **dict.fromkeys(wanted, True))


def specs() -> dict[str, ModelSpec]:
    """Return models of every graph network and of every other part, with all norms that they can have."""
    found: dict[str, ModelSpec] = {}
    networks: dict[str, GNNSpec] = {name: with_all_norms(kind) for name, kind in GNNS.items()}
    networks["gine"] = GIN(batch_norm=True, mlp_norm=True, edge_dim=3)
    for (name, gnn), activate in product(networks.items(), (False, True)):
        found[f"{name}, activate={activate}"] = ModelSpec(gnn, decoder=MLPDecoder(), activate=activate)
        found[f"{name} alone"] = ModelSpec(gnn)
    for name, kind in DECODERS.items():
        found[f"decoder {name}"] = ModelSpec(GCN(batch_norm=True), decoder=with_all_norms(kind), activate=True)
    for name, encoder in ENCODERS.items():
        found[f"encoder {name}"] = ModelSpec(GCN(batch_norm=True), encoder=with_all_norms(encoder))
    for name, readout in READOUTS.items():
        found[f"readout {name}"] = ModelSpec(
            GCN(batch_norm=True), readout=with_all_norms(readout), decoder=MLPDecoder()
        )
    return found


def built(spec: ModelSpec) -> Model:
    with torch.random.fork_rng(devices=[]):
        return spec.build(6, 1)


def norms_of(model: Model) -> list[str]:
    return [name for name, part in model.named_modules() if isinstance(part, BatchNorm)]


WITH_NORMS = [name for name, spec in specs().items() if norms_of(built(spec))]


def test_the_page_and_the_schema_name_the_pattern() -> None:
    assert f'\'shared=["{FED_BN[0]}", "{FED_BN[1]}"]\'' in PAGE
    assert f'"{FED_BN[1]}" for an exception' in (Course.__doc__ or "")
    assert not re.search(r"norms\.\*", PAGE)


@pytest.mark.parametrize("name", WITH_NORMS)
def test_the_pattern_names_every_norm_and_nothing_else(name: str) -> None:
    model = built(specs()[name])
    norms = norms_of(model)
    expected = {slot for slot in model.state_dict() if slot.rpartition(".")[0] in norms}
    assert len(expected) == 4 * len(norms)  # weight, bias and both statistics
    assert set(model.state_dict()) - shared_names(FED_BN, model.state_dict()) == expected


def test_there_are_models_of_every_place_that_a_norm_can_have() -> None:
    models = [built(spec) for spec in specs().values()]
    places = {re.sub(r"\d+", "N", name) for model in models for name in norms_of(model)}
    assert places == {"gnn.norms.N", "gnn.layers.N.norms.N", "activation.norm", "decoder.norms.N"}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedopt"])
def test_norms_differ_by_client_and_are_in_no_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Record] = []
    monkeypatch.setattr(Wire, "seen", seen, raising=False)
    monkeypatch.setattr("isthmus.runs.simulation.LoopRuntime", Wire)
    model = ModelSpec(GCN(hidden=5, batch_norm=True), decoder=MLPDecoder(hidden=4), activate=True)
    result = run(toy_course(quick(name), model=model, shared=FED_BN, rounds=3), scenario=toy_scenario())
    down = [record for record in seen if isinstance(record, Request)]
    up = [record for record in seen if not isinstance(record, Request)]
    assert down and up and len(result.client_params) == 3
    sent = b"".join(encode(record) for record in seen)
    assert b"gnn.layers.0.weight" in sent and b"norm" not in sent
    assert not [place for record in seen for place in leaves(record) if "norm" in place]
    for slot in ("gnn.norms.0", "activation.norm"):
        for part in ("running_mean", "running_var", "weight", "bias"):
            values = [params[f"{slot}.{part}"].numpy().tobytes() for params in result.client_params.values()]
            assert len(set(values)) == 3, f"{slot}.{part} is the same with two clients"
            assert not any(value in sent for value in values), "it was sent under another name"
