"""Running a course from start to end, with its run folder: what `isthmus run` and `isthmus.run` do."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.load import NOT_IN_DIGEST, course_digest, course_to_dict, course_to_yaml, differences, load_course
from isthmus.config.schedules import schedule_notes
from isthmus.core.errors import BadInput, NotResumable, OtherCourse
from isthmus.core.federation import ExchangeReport, Federation
from isthmus.core.record import Params, State
from isthmus.core.training import RoundReport, Standing, evaluate, finished, run_course
from isthmus.data.zoo import data_root as locate_data
from isthmus.learn.evaluate import Scores, weighted
from isthmus.runs.checkpoint import load_checkpoint, save_checkpoint
from isthmus.runs.folder import RunFolder, set_aside
from isthmus.runs.journal import Journal, read_journal, read_whole_journal
from isthmus.runs.measuring import Monitoring, check_monitors
from isthmus.runs.result import Result
from isthmus.runs.simulation import Scenario, Simulation, load_scenario, torch_threads

MOST_KEYS = 5  # that are told of a course that is another


class Watcher(Protocol):
    """Hears of every exchange and round; progress bars and sinks are watchers."""

    def exchanged(self, report: ExchangeReport) -> None:
        """Take note of an exchange."""

    def round_done(self, report: RoundReport) -> None:
        """Take note of a round."""


class Recorder:
    """Writes journal and checkpoints, and tells the watchers."""

    def __init__(self, journal: Journal, folder: RunFolder | None, digest: str, watchers: Sequence[Watcher]) -> None:
        self.journal, self.folder, self.digest, self.watchers = journal, folder, digest, watchers

    def exchanged(self, report: ExchangeReport) -> None:
        """Write an exchange."""
        self.journal.exchanged(report)
        for watcher in self.watchers:
            watcher.exchanged(report)

    def round_done(self, report: RoundReport) -> None:
        """Write a round."""
        self.journal.round_done(report)
        for watcher in self.watchers:
            watcher.round_done(report)

    def noted(self, round: int, text: str) -> None:
        """Write what the algorithm says."""
        self.journal.write("note", round=round, text=text)

    def checkpoint(self, standing: Standing, memories: Mapping[str, bytes]) -> None:
        """Write a checkpoint, if there is a folder for it."""
        if self.folder is not None:
            started = time.perf_counter()
            save_checkpoint(self.folder.checkpoint, self.digest, standing, memories)
            self.journal.write("checkpoint", round=standing.round, seconds=round(time.perf_counter() - started, 6))


def run(
    course: Course | None = None,
    *,
    run_dir: str | Path | None = None,
    data_root: str | Path | None = None,
    watchers: Sequence[Watcher] = (),
    scenario: Scenario | None = None,
    notes: Sequence[str] = (),
) -> Result:
    """Run a course and return its result; with `run_dir`, journal, checkpoints and models are kept there.

    `scenario` gives data that is loaded and split already; otherwise the course says where it comes from. `notes` are
    what its readers should know beside: the journal has them, and the result.
    """
    course = course or Course()
    with torch_threads(course.threads):
        if run_dir is not None:
            RunFolder.check_new(Path(run_dir))  # before the data is loaded
        scenario = scenario or load_scenario(course, locate_data(data_root))
        started = time.perf_counter()
        simulation = Simulation(course, scenario)
        building = time.perf_counter() - started
        check_monitors(course, simulation)
        folder = None if run_dir is None else RunFolder.create(Path(run_dir), course_to_yaml(course))
        journal = Journal(folder.journal if folder else None)
        _introduce(journal, course, simulation)
        journal.write("setup", load_seconds=round(scenario.seconds, 6), build_seconds=round(building, 6))
        for note in [*notes, *schedule_notes(course), *scenario.notes, *simulation.notes()]:
            journal.write("note", text=note)
        return _carry_out(course, simulation, folder, journal, watchers, None)


def run_anew(course: Course, run_dir: Path, reason: str, *, data_root: str | Path | None = None) -> Path:
    """Run a course where something lies that cannot be resumed; return where that was set aside, with the reason."""
    with torch_threads(course.threads):  # without its data the course cannot be run: then everything stays
        scenario = load_scenario(course, locate_data(data_root))
    aside = set_aside(run_dir, reason)
    run(course, run_dir=run_dir, scenario=scenario)
    return aside


def _introduce(journal: Journal, course: Course, simulation: Simulation) -> None:
    """Write what a journal begins with: the course, and who holds what."""
    journal.write("course", version=__version__, python=platform.python_version(), course=course_to_dict(course))
    for client, text in _holdings(simulation).items():
        journal.write("client", client=client, text=text)


def resume(
    run_dir: str | Path,
    *,
    course: Course | None = None,
    overrides: Sequence[str] = (),
    data_root: str | Path | None = None,
    watchers: Sequence[Watcher] = (),
) -> Result:
    """Go on with a run from its last checkpoint; the result has the same bits as if it had never stopped.

    `overrides` may extend the run (`rounds=500`); anything that makes it another course is refused. A course with parts
    that exist only as Python objects must be given again as `course`.
    """
    folder = RunFolder.open(Path(run_dir))
    if folder.is_of_sites:
        raise BadInput(f"{run_dir} is the run of a course between sites; {folder.how_to_go_on}")
    course = course or load_course(folder.course, overrides)
    try:
        standing, memories = load_checkpoint(folder.checkpoint, course_digest(course), course.algorithm)
    except OtherCourse as error:
        raise OtherCourse(_what_differs(folder, course) or str(error)) from None
    with torch_threads(course.threads):
        simulation = Simulation(course, load_scenario(course, locate_data(data_root)))
        check_monitors(course, simulation)
        _check_holdings(folder, simulation)
        simulation.runtime.load_clients(memories)
        journal = Journal(folder.journal)
        if not journal.rewind(standing.round):
            _introduce(journal, course, simulation)
        journal.write("resume", after=standing.round)
        if finished(course.plan(), standing):
            text = f"nothing was left to train: {standing.round} rounds were done and rounds is {course.rounds}"
            early = "" if standing.round >= course.rounds else ", but patience had run out"
            journal.write("note", text=f"{text}{early}; the results are those of the run as it was", at_end=True)
        return _carry_out(course, simulation, folder, journal, watchers, standing)


def _holdings(simulation: Simulation) -> dict[str, str]:
    """Return what each client holds, in words."""
    return {client: simulation.course.task.holds(part) for client, part in simulation.scenario.parts.items()}


def _check_holdings(folder: RunFolder, simulation: Simulation) -> None:
    """Raise `BadInput` where a client no longer holds what it held when the run started."""
    try:
        events = list(read_whole_journal(folder.journal)) if folder.journal.exists() else []
    except BadInput as error:
        raise NotResumable(f"{error}; without the file the run can go on, and begins its journal anew") from None
    before = {entry["client"]: entry["text"] for entry in events if entry["event"] == "client"}
    now = _holdings(simulation)
    for client in before:
        if now.get(client) != before[client]:
            # Courses of 0.1 that say "louvain" were divided by igraph's.
            by_louvain = getattr(simulation.course.splitter, "method", None) == "louvain"
            raise BadInput(
                f"{folder.path}: client {client!r} held {before[client]!r} when the run started and now holds "
                f"{now.get(client, 'nothing')!r}; the data changed, or the way in which this version divides it. "
                "Start it anew" + (", with splitter.method=igraph_louvain for igraph's communities" * by_louvain)
            )


def _what_differs(folder: RunFolder, course: Course) -> str:
    """Return which keys make a course another than the one a run was started with; nothing where that is not known."""
    try:
        events = read_journal(folder.journal) if folder.journal.exists() else iter(())
        before = next((event["course"] for event in events if event["event"] == "course"), None)
        before = before or course_to_dict(load_course(folder.course))
    except BadInput:
        return ""
    now = course_to_dict(course)
    told = [
        f"{key} was {was!r} and is {is_!r}"
        for key, was, is_ in differences(before, now)
        if key.split(".")[0] not in NOT_IN_DIGEST
    ]
    more = f" and {len(told) - MOST_KEYS} more" if len(told) > MOST_KEYS else ""
    keys = f"{', '.join(told[:MOST_KEYS])}{more}"
    return f"{folder.path} is the run of another course: {keys}; resume with what it was started with" if told else ""


def _carry_out(
    course: Course,
    simulation: Simulation,
    folder: RunFolder | None,
    journal: Journal,
    watchers: Sequence[Watcher],
    standing: Standing | None,
) -> Result:
    watchers = [*watchers, *_sinks(course, folder)]
    recorder = Recorder(journal, folder, course_digest(course), watchers)
    monitoring = Monitoring(course, simulation, journal, standing) if course.monitors else None
    runtime = monitoring.runtime if monitoring else simulation.runtime
    started = time.perf_counter()
    if monitoring:
        monitoring.start()
    standing = run_course(course.algorithm, runtime, course.plan(), simulation.initial, recorder, standing)
    for note in simulation.runtime_notes():
        journal.write("note", text=note)
    for note in [*journal.failure_notes(), *journal.scoring_notes(standing.best_round)]:
        journal.write("note", text=note, at_end=True)
    seconds = time.perf_counter() - started - (monitoring.seconds if monitoring else 0.0)
    if monitoring:
        monitoring.finish(standing.round)
    ended = time.perf_counter()
    result = _result(course, simulation, folder, journal, standing, seconds)
    journal.write("scored", seconds=round(time.perf_counter() - ended, 6))
    finish(result, standing, journal, folder, simulation.class_names(), simulation.features())
    if monitoring and folder is not None:
        monitoring.draw(folder)
    return result


def finish(
    result: Result,
    standing: Standing,
    journal: Journal,
    folder: RunFolder | None,
    class_names: Mapping[str | None, Sequence[str]],
    features: Mapping[str | None, Mapping[str, str]],
) -> None:
    """Write the last event and the models of a run.

    `class_names` has the whole's for None, and each client's; `features` the facts of their columns (`feature_facts`).
    """
    journal.write(
        "end",
        num_rounds=result.num_rounds,
        best_round=result.best_round,
        best_score=standing.best_score,
        seconds=round(result.seconds, 3),
        metrics=result.metrics,
        client_scores=result.client_scores,
        missing=result.missing,
    )
    if folder is not None:
        whole = (result.input_dim, result.output_dim)

        def facts(client: str | None) -> dict[str, str]:
            into, out = result.client_dims.get(client, whole) if client else whole
            names = list(class_names.get(client, class_names[None]))
            sizes = {"input_dim": str(into), "output_dim": str(out)}
            columns = features.get(client, features[None])
            return {"isthmus": __version__, **sizes, "class_names": json.dumps(names), **columns}

        folder.save_models(result.params, result.client_params, facts)
        folder.save_parts(result.client_parts)


def _sinks(course: Course, folder: RunFolder | None) -> list[Watcher]:
    if "tensorboard" not in course.sinks:
        return []
    if folder is None:
        raise BadInput("sinks has 'tensorboard', which needs a run folder to write to")
    from isthmus.sinks.tensorboard import TensorBoardSink

    return [TensorBoardSink(folder.path / "tensorboard")]


def _asked(course: Course, simulation: Simulation, standing: Standing) -> tuple[Scores, dict[str, Scores]]:
    """Ask every client how it does on its own test examples, as between sites; return the mean, and each one's."""
    plan = course.plan()
    fed = Federation(
        simulation.runtime,
        seed=plan.seed,
        round=standing.round,
        cohort=simulation.runtime.clients,
        model=simulation.initial,
        rules=plan.rules,
        report=lambda report: None,
    )
    found = evaluate(course.algorithm, standing.best_state, fed, ("test",), plan.stopping.metric, best=True)
    each = {client: dict(evaluation.metrics["test"]) for client, evaluation in found.items()}
    return weighted(each, {client: evaluation.counts["test"] for client, evaluation in found.items()}), each


def _scored(
    course: Course,
    simulation: Simulation,
    standing: Standing,
    shared: Params,
    models: dict[str, Params],
    memories: Mapping[str, State],
) -> tuple[dict[str, Scores], dict[str, Scores]]:
    """Return the scores of every mode, and those of each client with the model it would use."""
    algorithm = course.algorithm
    metrics: dict[str, Scores] = {}
    if algorithm.scored_by_clients(memories.values()):
        local, each = _asked(course, simulation, standing)
        mode = "local_model" if simulation.has_personal_models else "global_model"
        return {f"{mode}/local_graph": local}, each
    if shared and not simulation.initial.personal:
        everyone = dict.fromkeys(simulation.clients, shared)
        metrics["global_model/global_graph"] = simulation.on_global_graph({"global": shared}, "test")
        metrics["global_model/local_graph"] = simulation.on_local_graphs(everyone, "test")[0]
    local, each = simulation.on_local_graphs(models, "test")
    if algorithm.pooled:
        each = simulation.on_parts_of_global_graph(models["all"], "test")
    if simulation.has_personal_models:
        if simulation.one_set_of_classes:
            metrics["local_model/global_graph"] = simulation.on_global_graph(models, "test")
        metrics["local_model/local_graph"] = local
    return metrics, each


def _is_finite(params: Params) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in params.values())


def _result(
    course: Course,
    simulation: Simulation,
    folder: RunFolder | None,
    journal: Journal,
    standing: Standing,
    seconds: float,
) -> Result:
    algorithm = course.algorithm
    shared = algorithm.global_params(standing.best_state)
    memories = {name: algorithm.best_memory(memory) for name, memory in simulation.memories().items()}
    models = {}
    for name, memory in memories.items():
        params = algorithm.client_params(shared, memory)
        if params:  # a client that failed in the setup of `local` has no model
            own = simulation.clients[name].own
            models[name] = {**own, **params} if own else params
    personal = simulation.has_personal_models
    diverged = [name for name, params in models.items() if personal and not _is_finite(params)]
    if diverged:
        more = f" and {len(diverged) - 3} more" if len(diverged) > 3 else ""
        text = f"the own models of {', '.join(diverged[:3])}{more} diverged: they are NaN or infinite and in no mean"
        journal.write("note", text=f"{text}; a smaller learning rate may help", at_end=True)
    metrics, each = _scored(course, simulation, standing, shared, models, memories)
    exchanges = [event for event in journal.events if event["event"] == "exchange"]
    input_dim, output_dim = simulation.whole_dims
    return Result(
        course=course,
        metrics=metrics,
        client_scores=each,
        num_rounds=standing.round,
        best_round=standing.best_round,
        seconds=seconds,
        bytes_down=sum(event["bytes_down"] for event in exchanges),
        bytes_up=sum(event["bytes_up"] for event in exchanges),
        input_dim=input_dim,
        output_dim=output_dim,
        params=shared,
        client_params=models if personal else {},
        client_dims=simulation.client_dims if personal else {},
        client_parts={name: parts for name, memory in memories.items() if (parts := algorithm.client_parts(memory))},
        events=journal.events,
        notes=[event["text"] for event in journal.events if event["event"] == "note"],
        run_dir=None if folder is None else folder.path,
        clients=tuple(simulation.scenario.parts if algorithm.pooled else simulation.clients),
    )
