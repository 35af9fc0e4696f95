"""Devices: what a course and a silo may ask for, and that nothing of a client's lies anywhere but on its device.

No GPU is needed: a pretended device refuses what a real one would (docs/devices.md says what that shows and what not).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

import isthmus as ist
from isthmus.algorithms import ALGORITHMS
from isthmus.config.load import course_digest, load_course
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.core.record import CPU, State, device_of, moved
from isthmus.data.graph import Graph
from isthmus.sites.courses.site_course import MEANINGLESS
from isthmus.testing.toys import toy_graph, toy_scenario
from tests.learn.tasks.graph_toys import toy_set
from tests.learn.tasks.link_toys import toy_ratings
from tests.on_device import CASES, MODELS, QUICK, compare_algorithm, compare_case, compare_model, refusals

# ---- names


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "meta", "", "cpu:0", "cuda 1"])
def test_a_device_of_no_kind_is_refused_with_what_would_do(name: str) -> None:
    with pytest.raises(BadInput, match=r"device is '.*; (choose from auto, cpu, cuda, cuda:0|there is one CPU)"):
        load_course({"device": name})


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_here_is_refused_before_the_start_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has such a device")
    course = load_course({"device": name})  # another machine may have it
    with pytest.raises(BadInput, match=f"device is '{name}', but .*; use device=cpu, or device=auto"):
        ist.run(course, scenario=toy_scenario(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_auto_takes_cuda_then_mps_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    has = {"cuda": True, "mps": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has["mps"])
    assert device_of("auto") == torch.device("cuda")
    has["cuda"] = False
    assert device_of("auto") == torch.device("mps")
    has["mps"] = False
    assert device_of("auto") == CPU


def test_a_gpu_beyond_those_that_are_there_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_of("cuda:0") == torch.device("cuda:0")
    with pytest.raises(BadInput, match="--device is 'cuda:1', but this machine has 1 cuda device, counted from 0"):
        device_of("cuda:1", "--device")


def test_the_device_is_no_part_of_what_a_course_is() -> None:
    assert course_digest(load_course({"device": "cuda"})) == course_digest(load_course({}))
    assert "device" in MEANINGLESS  # between sites each silo has its own


# ---- values


def test_moving_keeps_what_lies_there_and_what_is_one_thing_in_two_places() -> None:
    meta, shared = torch.device("meta"), {"w": torch.ones(2)}
    value = ({"a": shared, "n": 3}, {"b": shared}, "text")
    there = moved(value, meta)
    assert there[0]["a"]["w"].device == meta and there[0]["a"] is there[1]["b"] and there[0]["n"] == 3
    assert moved(value, CPU) is value


@pytest.mark.parametrize("data", [toy_graph(weighted=True), toy_graph(sparse=True), toy_ratings(), toy_set("class")])
def test_data_is_moved_with_all_its_tensors(data: Graph) -> None:
    there = data.to(torch.device("meta"))
    assert data.to(CPU) is data
    tensors = [each for each in vars(there).values() if isinstance(each, torch.Tensor)]
    tensors += [each for group in (there.masks, there.attributes) for each in group.values()]
    assert len(tensors) > 4 and all(tensor.device.type == "meta" for tensor in tensors)
    assert there.mask("nothing").device.type == "meta"


def test_bytes_do_not_know_where_a_tensor_lay() -> None:
    value = {"w": torch.arange(6.0).view(2, 3)}
    found: State = decode(encode(value), State)
    assert found["w"].device == CPU and torch.equal(found["w"], value["w"])


# ---- whole courses


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """A process in which no gradient has been computed yet, and which ends with this file."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_the_pretended_device_refuses_what_a_real_one_would(elsewhere: ProcessPoolExecutor) -> None:
    found = elsewhere.submit(refusals).result()
    assert len(found) == 8
    assert {name: text.split(":")[0] for name, text in found.items()} == dict.fromkeys(found, "WrongDevice")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_course_on_a_device_ends_with_the_bits_of_one_on_the_cpu(name: str, elsewhere: ProcessPoolExecutor) -> None:
    assert elsewhere.submit(compare_case, name).result() > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg, together, sparse", "neighbourhoods", "links, ranked", "graphs, classes"])
def test_a_device_without_double_precision_will_do(name: str, elsewhere: ProcessPoolExecutor) -> None:
    assert elsewhere.submit(compare_case, name, doubles=False).result() > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_graph_network_stays_on_its_device(name: str, elsewhere: ProcessPoolExecutor) -> None:
    assert elsewhere.submit(compare_model, name).result() > 100


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "sparse"), [("loop", False), ("auto", True), ("strict", False)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_stays_on_its_device(
    name: str, runtime: str, sparse: bool, elsewhere: ProcessPoolExecutor
) -> None:
    assert elsewhere.submit(compare_algorithm, name, runtime, sparse).result() > 100
