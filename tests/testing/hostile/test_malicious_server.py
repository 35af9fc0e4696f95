"""A malicious server against a silo of every algorithm; and the harness sees what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.algorithms import ALGORITHMS, GFLAPPNP, FedAvg, FedGNN, Local, PFedMe, Scaffold
from isthmus.algorithms.fedavg import ModelUpdate
from isthmus.config.load import course_to_yaml
from isthmus.core.client import Client
from isthmus.core.protocol import Algorithm, EvaluateModel
from isthmus.runtime.reasons import Reasons
from isthmus.testing import SIEGES, besiege, check_steps
from isthmus.testing.hostile.siege import lay_siege
from tests.quick import quick
from tests.testing.hostile.worlds import world_of

NAMES = [name for name, kind in ALGORITHMS.items() if not kind.pooled]
SOME = ("local",)
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in SOME]


def noisy(name: str) -> Algorithm[Any]:
    return GFLAPPNP(noise_std=0.5) if name == "gfl_appnp" else quick(name)


@pytest.mark.parametrize("name", [*SOME, *OTHERS])
def test_no_siege_gets_through(name: str, tmp_path: Path) -> None:
    siege = besiege(noisy(name), tmp_path, world_of(name))
    assert siege.counted >= 50


@pytest.mark.parametrize(
    "name", ["gfl_appnp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedgnn", "fedsage_plus"))]
)
def test_no_siege_gets_through_but_for_the_longest_which_the_slow_set_has(name: str, tmp_path: Path) -> None:
    besiege(noisy(name), tmp_path, world_of(name), skip=("sizes", "proposals"))


@pytest.mark.parametrize(
    "name", ["pfedme", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name != "pfedme")]
)
def test_the_work_of_an_answer_grows_with_the_steps_that_the_policy_allows(name: str, tmp_path: Path) -> None:
    check_steps(quick(name), tmp_path, world_of(name))


def test_the_models_of_others_cost_a_silo_little(tmp_path: Path) -> None:
    siege = lay_siege(FedAvg(), tmp_path)
    text = course_to_yaml(siege.course)

    def settings(number: int, setting: str) -> str:
        each = "".join(f"  site-{k}: {{{setting}}}\n" for k in range(number))
        return text.replace("client_settings: {}", f"client_settings:\n{each}")

    with siege.counting():
        assert not siege.propose(settings(20, "model.gnn.hidden: 20000")).refusal
        assert not siege.propose(settings(1, "model.gnn.layers: 100")).refusal
        assert siege.propose(settings(5, "model.gnn.layers: 990")).refusal
        assert siege.propose(settings(100, "model.gnn.layers: 50")).refusal


# ---- the harness sees what it should


def test_noise_that_is_drawn_again_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_position(self: Client, purpose: str, guarded: Any) -> Any:
        assert self.secret is not None
        return self.secret.stream(self.position.round, self.position.exchange, purpose)

    monkeypatch.setattr(Client, "protecting", by_position)
    with pytest.raises(AssertionError, match="at the same place got the same noise"):
        SIEGES["noise"](lay_siege(FedGNN(expand_every=0), tmp_path))


def test_personal_parts_that_leave_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    siege = lay_siege(Local(), tmp_path)
    march = siege.march

    def leaking() -> Any:
        for message, reply, memory in march():
            own = Local().client_params({}, siege.memory(memory))
            yield message, ModelUpdate(own, 1.0) if own else reply, memory

    monkeypatch.setattr(siege, "march", leaking)
    with pytest.raises(AssertionError, match="silo's own"):
        SIEGES["personal"](siege)


def test_refusals_that_tell_more_than_their_kind_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reasons, "crossing", lambda self, kind, reason: f"{kind}: {reason}")
    with pytest.raises(AssertionError, match="tells more than its kind"):
        SIEGES["memories"](lay_siege(FedAvg(), tmp_path))


@pytest.mark.slow
def test_a_silo_without_bounds_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    siege = lay_siege(FedAvg(), tmp_path)
    monkeypatch.setattr("isthmus.sites.silo.policy.Policy._of_sizes", lambda self, course: "")
    with pytest.raises(AssertionError, match="takes part in a course with"):
        SIEGES["proposals"](siege)


def test_settings_of_one_silo_that_no_policy_looks_at_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    siege = lay_siege(FedAvg(), tmp_path)
    only_the_course: Any = lambda course: [("algorithm", course.algorithm)]  # noqa: E731
    monkeypatch.setattr("isthmus.sites.silo.policy.algorithms_of", only_the_course)
    monkeypatch.setattr("isthmus.sites.silo.policy.algorithms_of", only_the_course)
    with pytest.raises(AssertionError, match=r"takes part in a course with .* \{local_steps: 1000000000\}"):
        SIEGES["proposals"](siege)


@pytest.mark.slow
def test_steps_within_steps_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PFedMe, "nested_steps", ("", 0))
    with pytest.raises(AssertionError, match=r"PFedMe, TrainModel: an answer of 8 steps took .* operations"):
        check_steps(PFedMe(), tmp_path)


@pytest.mark.slow
def test_a_request_that_is_done_as_often_as_it_says_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvaluateModel, "__post_init__", lambda self: None)
    with pytest.raises(AssertionError, match=r"splits: repeated: EvaluateModel: .* operations"):
        SIEGES["sizes"](lay_siege(FedAvg(), tmp_path))


def test_sums_with_tensors_of_any_shape_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.algorithms.scaffold._require_fitting", lambda variate, client: None)
    with pytest.raises(AssertionError, match=r"variate.* as if 20000 times: TrainCorrected: .* bytes of tensors"):
        SIEGES["sizes"](lay_siege(Scaffold(), tmp_path))


@pytest.mark.slow
def test_what_is_kept_and_does_its_work_later_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.algorithms.gfl_appnp.require_aggregates", lambda request, client: None)
    with pytest.raises(AssertionError, match=r"aggregate: as if 20000 times: TrainWithAggregates: .* bytes of tensors"):
        SIEGES["sizes"](lay_siege(GFLAPPNP(), tmp_path))
