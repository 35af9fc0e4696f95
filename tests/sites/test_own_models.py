"""Between sites, silos may have features and model specs of their own where what depends on them is not shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import isthmus as ist
from isthmus import __version__
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.learn.tasks import LinkPrediction
from isthmus.models import GCN, DotDecoder, LinearEncoder, MLPDecoder, ModelSpec
from isthmus.runs.folder import load_model_file
from isthmus.runs.simulation import Scenario
from isthmus.sites.courses.agreement import SiteModels
from isthmus.sites.courses.messages import Proposal, Terms
from isthmus.sites.courses.site_course import Patience, SiteCourse
from tests.sites.in_process import FakeHub, fake_hub, scenario, site_course

ENCODED = ModelSpec(GCN(hidden=5, dropout=0.5), encoder=LinearEncoder(dim=4), decoder=MLPDecoder(hidden=4))
KEPT = ("*", "!encoder.*", "!decoder.*")
SITES = list(scenario().parts)
OWN: dict[str, Any] = {SITES[1]: {"model": {"encoder": {"name": "mlp", "dim": 4}, "decoder": {"hidden": 7}}}}


def other_features(number: int = 4) -> Scenario:
    """Three silos, of which the last has fewer features than the others."""
    made = scenario()
    parts = {n: replace(p, x=p.x[:, :number]) if n == SITES[-1] else p for n, p in made.parts.items()}
    return replace(made, parts=parts)


def course(**changes: Any) -> ist.Course:
    return site_course(ist.FedAvg(local_steps=2), **{"model": ENCODED, "shared": KEPT, **changes})


def on_sites(made: ist.Course, hub: FakeHub, run_dir: Path) -> ist.Result:
    patience = Patience(start_seconds=1, pause_seconds=1, retry_seconds=0.01)
    return SiteCourse(made, hub, tuple(hub.silos), run_dir, patience=patience, say=lambda text: None).run()


def own_model_of(hub: FakeHub, site: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    (path,) = (hub.silos[site].state / "models").glob("*.safetensors")
    return load_model_file(path)


@pytest.mark.parametrize("settings", [{}, OWN], ids=["one model", "own models"])
def test_silos_with_other_features_and_models_end_with_those_of_the_loop(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    made, data = course(client_settings=settings), other_features()
    hub = fake_hub(tmp_path / "silos", made=data)
    sent: list[bytes] = []

    def keep(site: str, kind: str, message: bytes) -> None:
        if kind == "exchange":
            sent.append(message)

    hub.hook = keep
    result, expected = on_sites(made, hub, tmp_path / "run"), ist.run(made, scenario=data)
    assert result.client_scores == expected.client_scores and len(result.client_scores) == 3
    assert sent and not any(b"coder.layers" in message for message in sent)
    for site in SITES:
        params, facts = own_model_of(hub, site)
        own = expected.client_params[site]
        assert params.keys() == own.keys() and all(torch.equal(params[name], own[name]) for name in own)
        assert facts["input_dim"] == ("4" if site == SITES[-1] else "6")
    shape = own_model_of(hub, SITES[1])[0]["decoder.layers.0.weight"].shape
    assert shape == ((5, 7) if settings else (5, 4))


def test_other_features_are_refused_with_what_to_declare_where_the_first_layer_is_shared(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos", made=other_features())
    result = on_sites(course(shared=("*", "!decoder.*")), hub, tmp_path / "run")
    assert len(result.client_scores) == 2
    (note,) = [note for note in result.notes if note.startswith(f"{SITES[-1]} is refused")]
    assert "its nodes have 4 features, the others' have 6" in note and 'shared=["*", "!encoder.*"]' in note


def test_an_own_encoder_makes_room_for_other_features_at_one_silo(tmp_path: Path) -> None:
    plain = replace(ENCODED, encoder=None)
    settings = {SITES[-1]: {"model.encoder": {"name": "linear", "dim": 6}}}  # as wide as the others' features
    hub = fake_hub(tmp_path / "silos", made=other_features())
    result = on_sites(course(model=plain, client_settings=settings), hub, tmp_path / "run")
    assert len(result.client_scores) == 3
    assert own_model_of(hub, SITES[-1])[0]["encoder.layers.0.weight"].shape == (4, 6)
    assert own_model_of(hub, SITES[0])[0]["gnn.layers.0.weight"].shape == (6, 5)


def test_a_model_that_shares_other_shapes_ends_the_course_before_it_starts(tmp_path: Path) -> None:
    settings = {SITES[1]: {"model.gnn.hidden": 9}}
    hub = fake_hub(tmp_path / "silos")
    with pytest.raises(BadInput, match=rf"'gnn\.layers\.0\.weight' is shared.*{SITES[1]} it is \(4, 9\).*\(4, 5\)"):
        on_sites(course(client_settings=settings), hub, tmp_path / "run")
    assert not [kind for _, kind in hub.log if kind == "exchange"]


@pytest.mark.parametrize("hidden", [5, 9])
def test_a_silo_that_comes_late_with_its_own_model_is_let_in_if_it_fits(hidden: int, tmp_path: Path) -> None:
    settings = {SITES[1]: {"model.encoder.name": "mlp", "model.encoder.dim": 4, "model.gnn.hidden": hidden}}
    hub = fake_hub(tmp_path / "silos", made=other_features())
    hub.away.add(SITES[1])

    def back(site: str, kind: str, data: bytes) -> None:
        if kind == "exchange":
            hub.away.discard(SITES[1])

    hub.hook = back
    result = on_sites(course(client_settings=settings, min_replies=2), hub, tmp_path / "run")
    refused = [note for note in result.notes if note.startswith(f"{SITES[1]} is refused: the parameter 'gnn.layers.0")]
    assert bool(refused) == (hidden == 9) and (SITES[1] in result.client_scores) == (hidden == 5)


def test_a_silo_that_comes_back_with_other_features_than_it_had_is_refused(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path / "silos", made=other_features())
    last, seen = SITES[-1], 0

    def changed(site: str, kind: str, data: bytes) -> None:
        nonlocal seen
        seen += site == last and kind == "exchange"
        if site == last and kind == "exchange" and seen == 2:
            folder = hub.silos[last].data
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            write_graph_folder(other_features(3).parts[last], folder)
            hub.restart(last)

    hub.hook = changed
    result = on_sites(course(rounds=4), hub, tmp_path / "run")
    assert any("came back with another version, other features or other classes" in note for note in result.notes)


def test_settings_from_the_server_name_no_import_path(tmp_path: Path) -> None:
    silo = fake_hub(tmp_path).silos[SITES[1]]
    path = "tests.sites.in_process:FakeHub"
    for settings in ({"model.encoder": {"name": path}}, {"optimizer.name": path}, {"batching.name": path}):
        own = {SITES[1]: settings}
        proposal = Proposal("a" * 32, course_to_yaml(course(client_settings=own)), __version__, tuple(SITES))
        terms: Terms = decode(silo.handle("propose", encode(proposal)), Terms)
        assert "import paths are not allowed here" in terms.refusal


def test_what_is_free_follows_from_what_is_shared() -> None:
    assert SiteModels(course()).freedom().classes and SiteModels(course()).freedom().features
    shared = SiteModels(course(shared=("*",))).freedom()
    assert not shared.classes and not shared.features
    heads = SiteModels(course(shared=("*", "!decoder.*"))).freedom()
    assert heads.classes and not heads.features
    one_score = ModelSpec(GCN(hidden=5), decoder=DotDecoder())  # which cannot be built for two classes
    links = course(task=LinkPrediction(), model=one_score, shared=("*", "!gnn.layers.0.*"))
    assert not SiteModels(links).freedom().classes and SiteModels(links).freedom().features
