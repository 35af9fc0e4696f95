"""Runs in this process: a course, its resumption, and the same course without a federation beside it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from isthmus.algorithms import ALGORITHMS
from isthmus.config.build import name_of
from isthmus.config.course import Course, schedule_notes
from isthmus.config.load import NOT_IN_DIGEST, course_digest, course_to_dict, course_to_yaml, differences, load_course
from isthmus.core.errors import BadInput, NotResumable, OtherCourse
from isthmus.core.outside import data_root as locate_data
from isthmus.core.outside import replace_file, some
from isthmus.core.record import Params, State, device_of
from isthmus.core.training import Callback, Standing, finished, run_course
from isthmus.learn.graph_client import Scores
from isthmus.report.summary import Table, run_table
from isthmus.runs.at_workers import at_workers, blocks_of
from isthmus.runs.folder import Journal, RunFolder, load_checkpoint
from isthmus.runs.journal import read_journal, read_whole_journal
from isthmus.runs.life import Life, Outcome, Result
from isthmus.runs.measuring import Monitoring, check_monitors
from isthmus.runs.simulation import Scenario, Simulation, load_scenario, torch_threads
from isthmus.runtime.cluster import Crew, crew_of
from isthmus.sinks import SINKS, About, Sinks

MOST_KEYS = 5  # that are told of a course that is another


def run(
    course: Course | None = None,
    *,
    run_dir: str | Path | None = None,
    data_root: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    scenario: Scenario | None = None,
    notes: Sequence[str] = (),
    workers: int | None = None,
    cluster: str | None = None,
) -> Result:
    """Run a course and return its result; with `run_dir`, journal, checkpoints and models are kept there.

    `scenario` gives data that is loaded and split already; otherwise the course says where it comes from. `notes` are
    what its readers should know beside: the journal has them, and the result. With `workers` the clients are simulated
    in so many processes, with `cluster` by the workers of the Dask cluster at that address.
    """
    course = course or Course()
    device_of(course.device)  # what is not here is refused before the data is loaded
    if run_dir is not None:
        RunFolder.check_new(Path(run_dir))  # before the data is loaded
    with torch_threads(course.threads), crew_for(workers, cluster) as crew:
        scenario = scenario or load_scenario(course, locate_data(data_root))
        started = time.perf_counter()
        simulation = Simulation(course, scenario)
        if course.monitors:
            check_monitors(course, simulation)
        with _placed(simulation, crew) as facts:
            building = time.perf_counter() - started
            folder = None if run_dir is None else RunFolder.create(Path(run_dir), course_to_yaml(course))
            made = SimulatedRun(simulation, folder, callbacks)
            made.begin()
            made.journal.write("setup", load_seconds=round(scenario.seconds, 6), build_seconds=round(building, 6))
            made.tell_workers(facts)
            for note in [*notes, *schedule_notes(course), *scenario.notes, *simulation.notes()]:
                made.note(note)
            return made.to_the_end(None)


def resume(
    run_dir: str | Path,
    *,
    course: Course | None = None,
    overrides: Sequence[str] = (),
    data_root: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    scenario: Scenario | None = None,
    workers: int | None = None,
    cluster: str | None = None,
) -> Result:
    """Go on with a run from its last checkpoint; the result has the same bits as if it had never stopped.

    `overrides` may extend the run (`rounds=500`); anything that makes it another course is refused. A course with parts
    that exist only as Python objects must be given again as `course`. `scenario`, `workers` and `cluster` as in `run`;
    the bits are the same if the run was begun on workers too, however many there are now.
    """
    folder = RunFolder.open(Path(run_dir))
    if folder.is_of_sites:
        raise BadInput(f"{run_dir} is the run of a course between sites; {folder.how_to_go_on}")
    course = course or load_course(folder.course, overrides)
    try:
        standing, memories = load_checkpoint(folder.checkpoint, course_digest(course), course.algorithm)
    except OtherCourse as error:
        raise OtherCourse(_what_differs(folder, course) or str(error)) from None
    with torch_threads(course.threads), crew_for(workers, cluster) as crew:
        simulation = Simulation(course, scenario or load_scenario(course, locate_data(data_root)))
        if course.monitors:
            check_monitors(course, simulation)
        events = checked_events(folder, simulation)
        with _placed(simulation, crew, blocks_of(events)) as facts:
            simulation.runtime.load_clients(memories)
            made = SimulatedRun(simulation, folder, callbacks)
            if not made.journal.rewind(standing.round):
                made.begin()
            made.journal.write("resume", after=standing.round)
            made.tell_workers(facts)
            if finished(course.plan(), standing):
                text = f"nothing was left to train: {standing.round} rounds were done and rounds is {course.rounds}"
                early = "" if standing.round >= course.rounds else ", but patience had run out"
                made.note(f"{text}{early}; the results are those of the run as it was", at_end=True)
            return made.to_the_end(standing)


def crew_for(workers: int | None, cluster: str | None) -> AbstractContextManager[Crew | None]:
    """Return the workers that are asked for, as a context; nobody where the clients stay in this process."""
    return nullcontext() if workers is None and cluster is None else crew_of(workers, cluster)


@contextmanager
def _placed(simulation: Simulation, crew: Crew | None, num_blocks: int | None = None) -> Iterator[dict[str, Any]]:
    """Have a simulation's clients at workers for a while; give what the journal should say of that, if anything."""
    if crew is None:
        yield {}
        return
    simulation.runtime = runtime = at_workers(simulation, crew, num_blocks)
    try:
        yield {"where": crew.where, "workers": len(crew.workers()), "blocks": len(runtime.blocks)}
    finally:
        runtime.close()


def _holdings(simulation: Simulation) -> dict[str, str]:
    """Return what each client holds, in words."""
    return {client: simulation.course.task.holds(part) for client, part in simulation.scenario.parts.items()}


def checked_events(folder: RunFolder, simulation: Simulation) -> list[dict[str, Any]]:
    """Return what the journal has; raise `BadInput` where a client no longer holds what it held at the start."""
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
    found = next((entry.get("data") for entry in events if entry["event"] == "course"), None)
    if found not in (None, simulation.fingerprint):
        raise BadInput(
            f"{folder.path}: the data changed since the run started: clients hold as much as before, but not the same "
            "(other features, labels, edges or splits). Put the data back, or start it anew"
        )
    return events


def _what_differs(folder: RunFolder, course: Course) -> str:
    """Return which keys make a course another than the one a run was started with; nothing where that is not known."""
    try:
        events = read_journal(folder.journal) if folder.journal.exists() else iter(())
        before = next((event["course"] for event in events if event["event"] == "course"), None)
        before = before or course_to_dict(load_course(folder.course))
    except BadInput:
        return ""
    now = course_to_dict(course)
    heeded = [found for found in differences(before, now) if found[0].split(".")[0] not in NOT_IN_DIGEST]
    told = [f"{key} was {was!r} and is {is_!r}" for key, was, is_ in heeded]
    keys = some(told, MOST_KEYS)
    return f"{folder.path} is the run of another course: {keys}; resume with what it was started with" if told else ""


class SimulatedRun(Life):
    """A run whose clients are all in this process, so that every model can be scored on every graph."""

    def __init__(self, simulation: Simulation, folder: RunFolder | None, callbacks: Sequence[Callback]) -> None:
        journal = Journal(None if folder is None else folder.journal)
        super().__init__(simulation.course, folder, journal, callbacks)
        self.simulation = simulation
        self.sinks = self._sinks()
        self.callbacks += [self.sinks] if self.sinks else []
        self.until: int | None = None  # the round after which it is left; None: it goes on to its end

    def _sinks(self) -> Sinks | None:
        """Return where the run's numbers go beside its journal."""
        if not self.course.sinks:
            return None
        if self.folder is None:
            raise BadInput(f"sinks has {self.course.sinks[0]!r}, which needs a run folder to write to")
        replies = {each["request"]: each["reply"] for each in self.exposure()}
        about = About(self.folder.path.resolve().name, self.folder.path, course_to_dict(self.course), replies)
        return Sinks({name: SINKS[name] for name in self.course.sinks}, about, self.note)

    def to_the_end(self, standing: Standing | None) -> Result:
        """Run it to its end; one that is cut short leaves no sink waiting."""
        try:
            return super().to_the_end(standing)
        except BaseException:
            if self.sinks is not None:
                self.sinks.leave()
            raise

    def wound_up(self, standing: Standing, seconds: float) -> Result:
        """Tell the sinks too what it came to."""
        result = super().wound_up(standing, seconds)
        if self.sinks is not None:
            self.sinks.close(result.metrics)
        return result

    def begin(self) -> None:
        """Write what a journal begins with: the course, and who holds what."""
        facts = {} if self.folder is None else {"data": self.simulation.fingerprint}
        self.introduce(python=platform.python_version(), **facts)
        for client, text in _holdings(self.simulation).items():
            self.journal.write("client", client=client, text=text)

    def tell_workers(self, facts: Mapping[str, Any]) -> None:
        """Write where the clients are, if they are not in this process; a resume divides them the same way."""
        if facts:
            self.journal.write("workers", **facts)

    def train(self, standing: Standing | None) -> tuple[Standing, float]:
        """Run the rounds; what monitors take is not counted."""
        course, simulation = self.course, self.simulation
        monitoring = Monitoring(simulation, self.journal, standing) if course.monitors else None
        runtime = monitoring.runtime if monitoring else simulation.runtime
        started = time.perf_counter()
        if monitoring:
            monitoring.start()
        standing = run_course(
            course.algorithm,
            runtime,
            course.plan(),
            simulation.initial,
            self.callbacks,
            standing,
            own=simulation.own,
            listener=simulation.listener,
            until=self.until,
        )
        seconds = time.perf_counter() - started - (monitoring.seconds if monitoring else 0.0)
        for what, reason in simulation.done_alone().items():
            self.journal.write("alone", what=what, reason=reason)
        for note in simulation.runtime_notes():
            self.note(note)
        if monitoring:
            monitoring.finish(standing.round)
            if self.folder is not None:
                monitoring.draw(self.folder)
        return standing, seconds

    def score(self, standing: Standing) -> Outcome:
        """Score the models of the best round, and those of each client."""
        algorithm, simulation = self.course.algorithm, self.simulation
        shared = algorithm.global_params(standing.best_state)
        memories = {name: algorithm.best_memory(memory) for name, memory in simulation.memories().items()}
        models = self._models(shared, memories)
        metrics, each = self._modes(standing, shared, models, memories)
        personal = simulation.has_personal_models
        input_dim, output_dim = simulation.whole_dims
        parts = {name: own for name, memory in memories.items() if (own := algorithm.client_parts(memory))}
        return Outcome(
            metrics=metrics,
            client_scores=each,
            clients=tuple(simulation.scenario.parts if algorithm.pooled else simulation.clients),
            input_dim=input_dim,
            output_dim=output_dim,
            class_names=simulation.class_names(),
            features=simulation.features(),
            client_params=models if personal else {},
            client_dims=simulation.client_dims if personal else {},
            client_parts=parts,
        )

    def _models(self, shared: Params, memories: Mapping[str, State]) -> dict[str, Params]:
        """Return the model that each client would use, whole; note those that have diverged."""
        models = {}
        for name, memory in memories.items():
            params = self.course.algorithm.client_params(shared, memory)
            if params:  # a client that failed in the setup of `local` has no model
                own = self.simulation.clients[name].own
                models[name] = {**own, **params} if own else params
        personal = self.simulation.has_personal_models
        every = {name: params.values() for name, params in models.items() if personal}
        diverged = [name for name, own in every.items() if not all(bool(tensor.isfinite().all()) for tensor in own)]
        if diverged:
            text = f"the own models of {some(diverged)} diverged: they are NaN or infinite and in no mean"
            self.note(f"{text}; a smaller learning rate may help", at_end=True)
        return models

    def _modes(
        self, standing: Standing, shared: Params, models: dict[str, Params], memories: Mapping[str, State]
    ) -> tuple[dict[str, Scores], dict[str, Scores]]:
        """Return the scores of every mode, and those of each client with the model it would use."""
        algorithm, simulation = self.course.algorithm, self.simulation
        if algorithm.scored_by_clients(memories.values()):
            local, each = self.asked(simulation.runtime, simulation.initial, standing)
            mode = "local_model" if simulation.has_personal_models else "global_model"
            return {f"{mode}/local_graph": local}, each
        metrics: dict[str, Scores] = {}
        if shared and not simulation.initial.personal:
            everyone = dict.fromkeys(simulation.clients, shared)
            metrics["global_model/global_graph"] = simulation.on_global_graph({"global": shared}, "test")
            metrics["global_model/local_graph"] = simulation.on_local_graphs(everyone, "test")[0]
        local, each = simulation.on_local_graphs(models, "test")
        if algorithm.pooled:
            each = simulation.on_parts_of_global_graph(models["all"], "test")
        if simulation.has_personal_models:
            # Where every client's model is one for the whole data as well.
            if not simulation.own_models and set(simulation.client_dims.values()) == {simulation.whole_dims}:
                metrics["local_model/global_graph"] = simulation.on_global_graph(models, "test")
            metrics["local_model/local_graph"] = local
        return metrics, each


# ---- the same course without a federation: every client alone, and all data in one place

# Title in tables -> name of the algorithm.
BASELINES = {"Local": "local", "Global (centralised)": "global"}

# From the title of a run, its course and its folder to a context that gives the callbacks for it.
Watch: TypeAlias = Callable[[str, Course, Path | None], AbstractContextManager[Sequence[Callback]]]


def baseline(course: Course, name: str) -> Course:
    """Return the same course without a federation: as many local steps and the same optimiser, where it has them.

    It has no messages, and so no guards.
    """
    wanted = ("local_steps", "step_unit", "optimizer")
    same = {key: getattr(course.algorithm, key) for key in wanted if hasattr(course.algorithm, key)}
    alone: dict[str, Any] = {"min_replies": 1} if name == "global" else {}
    return replace(course, algorithm=ALGORITHMS[name](**same), guards=(), **alone)


def run_with_baselines(
    course: Course | None = None,
    *,
    run_dir: str | Path | None = None,
    data_root: str | Path | None = None,
    scenario: Scenario | None = None,
    notes: Sequence[str] = (),
    watch: Watch = lambda title, course, path: nullcontext(()),
    workers: int | None = None,
    cluster: str | None = None,
) -> dict[str, Result]:
    """Run a course, then Local and Global on the same data; return the results by title, the course's own first.

    With `run_dir` the baselines are kept below it, and its table has all of them. `workers` and `cluster` as in `run`.
    """
    course = course or Course()
    path = None if run_dir is None else Path(run_dir)
    if path is not None:
        RunFolder.check_new(path)  # before the data is loaded
    if scenario is None:
        with torch_threads(course.threads):
            scenario = load_scenario(course, locate_data(data_root))
    main = name_of(type(course.algorithm))
    courses = {main: course, **{title: baseline(course, name) for title, name in BASELINES.items()}}
    results = {}
    settings: dict[str, Any] = {"scenario": scenario, "notes": notes, "workers": workers, "cluster": cluster}
    for title, each in courses.items():
        place = path if path is None or title == main else path / "baselines" / BASELINES[title]
        with watch(title, each, place) as callbacks:
            results[title] = run(each, run_dir=place, callbacks=callbacks, **settings)
    if path is not None:
        replace_file(RunFolder(path).report, table_of(results).markdown().encode())
    return results


def table_of(results: dict[str, Result]) -> Table:
    """Return the table of some results on the same data."""
    first = next(iter(results.values()))
    return run_table({title: each.events for title, each in results.items()}, first.course.task.metrics[0])
