"""A server that knows everything but a silo's own secret cannot remove what protects it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus import __version__
from isthmus.algorithms import GFLAPPNP, FedAvg, FedGNN, FedSagePlus
from isthmus.algorithms.fedavg import TrainModel
from isthmus.algorithms.fedsage import PretrainGenerator, ShareGenerator
from isthmus.algorithms.fedsage.neighbor_generation import Impaired, draw_hidden, whole_counts
from isthmus.algorithms.gfl_appnp import ShareHidden
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode, pack, unpack
from isthmus.core.protocol import Algorithm, Position, Request, reply_type
from isthmus.core.random import ProtectingStream, Secret, torch_generator
from isthmus.core.record import Params
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.learn.optimizers import SGD
from isthmus.runs.simulation import Simulation, build_model
from isthmus.runtime.envelope import BLANK, Answer, Envelope
from isthmus.sites.courses.messages import Finish, Proposal, Terms
from isthmus.sites.silo import state as own_secret
from isthmus.sites.silo.service import SiloService
from isthmus.sites.silo.state import SECRET_FILE, USED_FOLDER, OwnSecret, simulate
from isthmus.testing import toy_course, toy_scenario
from tests.sites.in_process import SECRET, scenario, site_course, write_silos

SITES = ("client-0", "client-1", "client-2")
COURSE_ID = "ab" * 16
AT = Position(7, 1, 0)


class Server:
    """What a server can do to one silo: propose a course, and ask whatever it likes."""

    def __init__(self, silo: SiloService, course: Course, course_id: str = COURSE_ID) -> None:
        self.silo, self.course, self.course_id = silo, course, course_id
        self.refusal = self.propose(course)

    def propose(self, course: Course) -> str:
        """Propose a course under the one id that this server uses, and return the refusal."""
        self.course = course
        proposal = Proposal(self.course_id, course_to_yaml(course), __version__, SITES)
        terms: Terms = decode(self.silo.handle("propose", encode(proposal)), Terms)
        return terms.refusal

    def ask(self, request: Request[Any], at: Position = AT, memory: str = BLANK) -> tuple[Any, str]:
        """Return the reply, and the name of the memory that it left behind."""
        kind = type(request).__name__
        envelope = Envelope(self.course_id, at, kind, pack(encode(request)), memory, (memory,))
        answer: Answer = decode(self.silo.handle("exchange", encode(envelope)), Answer)
        assert answer.failure is None, answer.failure
        return decode(unpack(answer.payload), reply_type(type(request))), answer.memory


def silo_of(folder: Path, name: str = "client-0") -> SiloService:
    path = folder / name / "graph"
    if not path.exists():
        write_silos(folder)
        # A secret of its own as any silo's, but the same whenever the test is run.
        key = hashlib.blake2b(f"{folder.name} {name}".encode(), digest_size=32).hexdigest()
        own_secret._write(path.parent / "state" / SECRET_FILE, own_secret._HEAD, key)
    return SiloService(name, path, path.parent / "state", None, lambda text: None, SECRET)


def start(course: Course, silo: SiloService) -> Params:
    data = silo._read(course).data
    model = build_model(course, course.task.input_dim(data), course.task.output_dim(data))
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def memory_of(silo: SiloService, name: str) -> dict[str, Any]:
    """Look into a silo's memory, which no server can."""
    assert silo._last is not None
    return silo._last.silo.store.load(name)


def flat(params: Params) -> Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(params.items())])


def old_laplace(shape: Any, scale: float, generator: torch.Generator) -> Tensor:
    first = torch.empty(tuple(shape)).exponential_(generator=generator)
    return scale * (first - torch.empty(tuple(shape)).exponential_(generator=generator))


def streams_a_server_can_think_of(name: str, purpose: str, others: list[Secret]) -> list[ProtectingStream]:
    """All that derives from what is known: seed, names, place; and what other silos' secrets would give."""
    place = (name, AT.seed, AT.round, AT.exchange, purpose)
    secrets = [Secret.of_simulation(AT.seed, name), Secret.of_simulation(0, name), *others]
    secrets += [secret.derive("course", COURSE_ID) for secret in others]
    return [secret.stream(*place) for secret in secrets]


def guesses(
    purpose: str,
    draw: Callable[[ProtectingStream], Tensor],
    old: Callable[[torch.Generator], Tensor],
    name: str = "client-0",
) -> list[Tensor]:
    found = [old(torch_generator(AT.seed, AT.round, AT.exchange, who, purpose)) for who in (*SITES, "server")]
    others = [Secret(bytes([k]) * 32) for k in range(3)]
    return [*found, *(draw(stream) for stream in streams_a_server_can_think_of(name, purpose, others))]


# ---- one server for each method


def test_the_server_cannot_remove_the_noise_of_fedgnn(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"pseudo_items": 0, "expand_every": 0, "local_steps": 1, "optimizer": SGD(lr=0.1)}
    noisy = site_course(FedGNN(clip=0.1, noise=0.2, **fields))
    bare = site_course(FedGNN(clip=0.1, noise=0.0, **fields))
    silo = silo_of(tmp_path)
    params = start(noisy, silo)
    seen = Server(silo, noisy).ask(TrainModel(params))[0].params
    clean = Server(silo_of(tmp_path), bare, "cd" * 16).ask(TrainModel(params))[0].params

    def redrawn(laplace: Callable[[Any], Tensor]) -> Tensor:
        return flat({name: laplace(tensor.shape) for name, tensor in params.items()})

    tried = guesses(
        "perturbation",
        lambda stream: redrawn(lambda shape: stream.laplace(shape, 0.02)),
        lambda generator: redrawn(lambda shape: old_laplace(shape, 0.02, generator)),
    )
    assert min(float((flat(seen) - noise - flat(clean)).abs().max()) for noise in tried) > 0.05
    left = (flat(seen) - flat(clean)).double()
    assert float(left.abs().mean()) == pytest.approx(0.02, rel=0.35)  # there is noise, and of this scale


def test_the_server_cannot_remove_the_noise_of_gfl_appnp(tmp_path: Path) -> None:
    noisy, bare = site_course(GFLAPPNP(noise_std=1.0)), site_course(GFLAPPNP())
    silo = silo_of(tmp_path)
    params = start(noisy, silo)
    request = ShareHidden(params, True)
    seen = Server(silo, noisy).ask(request)[0].gradients
    clean = Server(silo_of(tmp_path), bare, "cd" * 16).ask(request)[0].gradients
    name = sorted(params)[0]
    rows, classes = clean[name].shape[0], clean[name].shape[1] + 1

    def difference(noise: dict[str, Tensor]) -> Tensor:
        return flat({key: each[:, :-1] - each[:, -1:] for key, each in noise.items()})

    def redrawn(normal: Callable[[Any], Tensor]) -> Tensor:
        return difference({key: normal((rows, classes, *clean[key].shape[2:])) for key in clean})

    tried = guesses(
        "noise",
        lambda stream: redrawn(stream.normal),
        lambda generator: redrawn(lambda shape: torch.randn(shape, generator=generator)),
    )
    assert min(float((flat(seen) - noise - flat(clean)).abs().mean()) for noise in tried) > 0.5
    assert float((flat(seen) - flat(clean)).double().var()) == pytest.approx(2.0, rel=0.1)


def test_neither_server_nor_peers_can_remove_the_noise_of_fedsage(tmp_path: Path) -> None:
    """Even with the rows of the nodes at hand: what is left without a guessed noise is not the embedding."""
    course = site_course(FedSagePlus(latent=4, hidden=5, num_generated=3, pretrain_steps=40, cross_rounds=1))
    silo = silo_of(tmp_path, "client-2")
    server = Server(silo, course)
    _, memory = server.ask(PretrainGenerator(start(course, silo)), Position(7, 0, 0))
    view, kept = server.ask(ShareGenerator(4, 5, 3), AT, memory)
    remembered = memory_of(silo, kept)["neighgen"]
    model = FedSagePlus(latent=4, hidden=5, num_generated=3)._loaded(
        silo._read(course).data.num_features, remembered["params"]
    )
    visible = Impaired.of(silo._read(course).data, remembered["hidden"]).input
    with torch.no_grad():
        z = model.encoder(visible, None)
        lacking = whole_counts(model.number(visible, z, None).squeeze(1), 3).nonzero().flatten()
    assert len(view.inputs) == len(lacking) >= 3
    tried = guesses(
        "noise",
        lambda stream: stream.normal(z.shape)[lacking],
        lambda generator: torch.randn(z.shape, generator=generator)[lacking],
        "client-2",
    )
    assert min(float((view.inputs - noise - z[lacking]).abs().mean()) for noise in tried) > 0.3
    assert float((view.inputs - z[lacking]).abs().mean()) > 0.3


def test_the_server_cannot_tell_which_nodes_of_fedsage_are_hidden(tmp_path: Path) -> None:
    course = site_course(FedSagePlus(latent=4, hidden=5, num_generated=3, pretrain_steps=1, cross_rounds=1))
    silo = silo_of(tmp_path, "client-2")
    _, memory = Server(silo, course).ask(PretrainGenerator(start(course, silo)))
    hidden = memory_of(silo, memory)["neighgen"]["hidden"]
    place = (AT.seed, AT.round, AT.exchange, "client-2", "hidden nodes")
    guess = draw_hidden(len(hidden), 0.5, Secret.of_simulation(AT.seed, "client-2").stream(*place))
    old = torch.zeros(len(hidden), dtype=torch.bool)
    old[torch.randperm(len(hidden), generator=torch_generator(*place))[: len(hidden) // 2]] = True
    assert not torch.equal(hidden, guess) and not torch.equal(hidden, old)


@pytest.mark.parametrize("name", ["fedgnn", "gfl_appnp"])
def test_the_same_request_repeats_its_reply_and_another_one_gets_independent_noise(name: str, tmp_path: Path) -> None:
    """The difference of two replies to almost the same request must not be without noise."""
    course, asked, read, scale = noisy_method(name)
    silo = silo_of(tmp_path)
    params = start(course, silo)
    server = Server(silo, course)
    first, again = read(server.ask(asked(params))[0]), read(server.ask(asked(params))[0])
    assert torch.equal(first, again)
    restarted = Server(silo_of(tmp_path), course)
    assert torch.equal(first, read(restarted.ask(asked(params))[0]))  # the secret is part of the silo's state
    nudged = {key: tensor + 1e-7 * (tensor.abs() + 1) for key, tensor in params.items()}
    other = read(server.ask(asked(nudged))[0])
    assert float((first - other).double().std()) > scale
    elsewhere = read(server.ask(asked(params), replace(AT, exchange=1))[0])
    assert float((first - elsewhere).double().std()) > scale


@pytest.mark.parametrize("name", ["fedgnn", "gfl_appnp"])
def test_another_course_another_text_and_another_memory_get_other_noise(name: str, tmp_path: Path) -> None:
    course, asked, read, scale = noisy_method(name)
    silo = silo_of(tmp_path)
    params = start(course, silo)
    first = read(Server(silo, course).ask(asked(params))[0])
    other_id = read(Server(silo, course, "cd" * 16).ask(asked(params))[0])
    assert float((first - other_id).double().std()) > scale
    other_text = read(Server(silo, replace(course, rounds=course.rounds + 1)).ask(asked(params))[0])
    assert float((first - other_text).double().std()) > scale
    other_silo = read(Server(silo_of(tmp_path / "b"), course).ask(asked(params))[0])
    assert float((first - other_silo).double().std()) > scale


def test_data_that_changed_gets_other_noise(tmp_path: Path) -> None:
    """A silo that corrects a label between two answers would else show by their difference what it corrected."""
    course, asked, read, scale = noisy_method("fedgnn")
    silo = silo_of(tmp_path)
    params = start(course, silo)
    first = read(Server(silo, course).ask(asked(params))[0])
    held = scenario().parts["client-0"]
    shutil.rmtree(silo.data)
    write_graph_folder(replace(held, y=held.y.roll(1)), silo.data)
    second = read(Server(silo_of(tmp_path), course).ask(asked(params))[0])
    assert float((first - second).double().std()) > scale


def noisy_method(
    name: str,
) -> tuple[Course, Callable[[Params], Request[Any]], Callable[[Any], Tensor], float]:
    """Return a course with noise, its request, where the noise is in the reply, and less than its spread."""
    if name == "fedgnn":
        algorithm: Algorithm[Any] = FedGNN(pseudo_items=0, expand_every=0, noise=0.2, optimizer=SGD(lr=0.1))
        return site_course(algorithm), TrainModel, lambda reply: flat(reply.params), 0.02
    course = site_course(GFLAPPNP(noise_std=1.0))
    return course, lambda params: ShareHidden(params, True), lambda reply: flat(reply.gradients), 1.5


# ---- the secret's file


def own(folder: Path, said: list[str] | None = None) -> OwnSecret:
    return OwnSecret(folder, (said if said is not None else []).append)


def test_a_silo_makes_its_secret_once_and_keeps_it_for_itself(tmp_path: Path) -> None:
    first = own(tmp_path / "state")
    path = tmp_path / "state" / SECRET_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert not first.secret.simulated
    assert own(tmp_path / "state").secret.fingerprint() == first.secret.fingerprint()
    assert own(tmp_path / "other").secret.fingerprint() != first.secret.fingerprint()
    assert [each.name for each in (tmp_path / "state").iterdir()] == [SECRET_FILE]  # nothing half-written


def test_no_answer_and_no_memory_holds_the_secret(tmp_path: Path) -> None:
    course, asked, _, _ = noisy_method("fedgnn")
    silo = silo_of(tmp_path)
    key = bytes.fromhex((silo.state / SECRET_FILE).read_text().splitlines()[1])
    replies: list[bytes] = []
    handle = silo.handle
    silo.handle = lambda kind, data: replies.append(handle(kind, data)) or replies[-1]  # type: ignore[method-assign,func-returns-value]
    Server(silo, course).ask(asked(start(course, silo)))
    files = [path.read_bytes() for path in silo.state.rglob("*") if path.is_file() and path.name != SECRET_FILE]
    for found in (*replies, *files):
        assert key not in found and key.hex().encode() not in found
    assert len(replies) == 2


@pytest.mark.parametrize("how", ["lost", "cut", "flipped", "empty", "binary"])
def test_a_lost_or_damaged_secret_is_told_and_its_courses_are_not_gone_on_with(how: str, tmp_path: Path) -> None:
    course, asked, _, _ = noisy_method("fedgnn")
    silo = silo_of(tmp_path)
    Server(silo, course).ask(asked(start(course, silo)))
    path = silo.state / SECRET_FILE
    old = path.read_bytes()
    digit = b"0" if old[30:31] != b"0" else b"1"
    damaged = {"cut": old[:50], "flipped": old[:30] + digit + old[31:], "empty": b"", "binary": bytes(range(256))}
    path.unlink() if how == "lost" else path.write_bytes(damaged[how])
    said: list[str] = []
    again = SiloService(silo.name, silo.data, silo.state, None, said.append, SECRET)
    assert any(("is lost" if how == "lost" else "is damaged") in text for text in said)
    assert any("1 courses that drew from the old secret cannot go on here" in text for text in said)
    assert Server(again, course).refusal
    assert any("a secret that this silo no longer has" in text for text in said)
    assert not Server(again, course, "cd" * 16).refusal  # a new course is welcome
    path.write_bytes(old)
    assert not Server(silo_of(tmp_path), course).refusal  # and the old one too, once the file is back


def test_a_lost_secret_that_no_course_used_is_made_anew_without_a_word(tmp_path: Path) -> None:
    said: list[str] = []
    own(tmp_path)
    (tmp_path / SECRET_FILE).unlink()
    own(tmp_path, said)
    assert said == []


def test_a_course_without_noise_leaves_no_trace_of_the_secret_and_one_that_ended_neither(tmp_path: Path) -> None:
    silo = silo_of(tmp_path)
    Server(silo, site_course())
    assert not (silo.state / USED_FOLDER).exists()
    Server(silo, noisy_method("fedgnn")[0])
    assert [each.name for each in (silo.state / USED_FOLDER).iterdir()] == [COURSE_ID]
    silo.handle("finish", encode(Finish(COURSE_ID, {}, BLANK)))
    assert not list((silo.state / USED_FOLDER).iterdir())


def test_the_secret_of_a_simulation_is_told_as_such(tmp_path: Path) -> None:
    simulate(tmp_path, 3, "client-0")
    said: list[str] = []
    found = own(tmp_path, said).secret
    assert found.simulated and found.fingerprint() == Secret.of_simulation(3, "client-0").fingerprint()
    assert "protects from nobody" in said[0]
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600


# ---- what people are told


def test_a_simulation_notes_that_its_noise_protects_from_nobody_and_only_where_there_is_some() -> None:
    def notes(algorithm: Any) -> list[str]:
        return [note for note in Simulation(toy_course(algorithm), toy_scenario()).notes() if "secrets" in note]

    (note,) = notes(FedGNN(embedding_noise=0.1))
    assert "(perturbation, pseudo items, embeddings)" in note and "derive from the seed" in note
    assert notes(GFLAPPNP(noise_std=0.5)) and notes(FedSagePlus())
    for silent in (FedGNN(noise=0.0, pseudo_items=0), GFLAPPNP(), FedSagePlus(num_generated=0), FedAvg()):
        assert notes(silent) == []


def test_a_course_without_gradients_gives_none_to_a_server_that_asks(tmp_path: Path) -> None:
    course = site_course(GFLAPPNP(gradients="none"))
    silo = silo_of(tmp_path)
    server = Server(silo, course)
    with pytest.raises(AssertionError, match="kind='error'"):
        server.ask(ShareHidden(start(course, silo), True))
    assert server.ask(ShareHidden(start(course, silo), False))[0].gradients == {}
