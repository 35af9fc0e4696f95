"""Measures the monitors that a course asks for, while it runs in this process, and writes them into the journal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.config.course import Course
from isthmus.core.errors import BadInput
from isthmus.core.federation import Runtime
from isthmus.core.outside import replace_file
from isthmus.core.record import Params
from isthmus.core.training import Standing
from isthmus.monitors import MONITORS, View
from isthmus.monitors.tapped_runtime import TappedRuntime, Trained, fits
from isthmus.report.summary import last_measured, monitor_figure
from isthmus.runs.folder import Journal, RunFolder
from isthmus.runs.simulation import Simulation


def check_monitors(course: Course, simulation: Simulation) -> None:
    """Raise BadInput if something that the course asks for cannot be measured in it."""
    for name in course.monitors:
        problem = MONITORS[name]().problem(_view(simulation, 0))
        if simulation.own_models and MONITORS[name].changes:
            who = simulation.own_models[0]
            problem = f"it compares models, and {who} has a model of its own kind (client_settings)"
        if problem:
            raise BadInput(f"monitors has {name!r}: {problem}")


class Monitoring:
    """The monitors of one run.

    A client's model of a round is what its last reply of the round held as `params`. For methods without such replies
    (`local`) it is the model that the client would use, made of its memory. Monitors of the data are measured once,
    as of round 0. An event that the journal has already is not written again, so a resumed run tells each once. What a
    client's model was trained from is what had been sent to it last; in a run that goes on, the `standing`'s model.

    `runtime` carries the course's exchanges, and `seconds` are what measuring took so far.
    """

    def __init__(self, simulation: Simulation, journal: Journal, standing: Standing | None) -> None:
        self.course, self.simulation, self.journal = simulation.course, simulation, journal
        self.seconds = 0.0
        self._of_models = [name for name in self.course.monitors if MONITORS[name].changes]
        known = None if standing is None else self.course.algorithm.global_params(standing.state)
        self._tap = TappedRuntime(simulation.runtime, self._may_be_due, self._marked, known)
        self.runtime: Runtime = self._tap if self._of_models else simulation.runtime

    def start(self) -> None:
        """Measure what does not change from round to round."""
        of_data = [name for name in self.course.monitors if not MONITORS[name].changes]
        self._measure(self._unwritten(of_data, 0), _view(self.simulation, 0))

    def finish(self, round: int) -> None:
        """Measure the last round; where its models are not known any more, leave a note."""
        if self._of_models and not self._measure_models(round):
            text = (
                f"{', '.join(self._of_models)}: the clients' models of round {round} are not known, since no round "
                "was run after the resume; run one more, or the course anew"
            )
            if not any(event.get("text") == text for event in self.journal.events):
                self.journal.write("note", round=round, text=text)

    def draw(self, folder: RunFolder) -> None:
        """Write the last numbers of each monitor into the run folder, as a figure."""
        for name, event in last_measured(self.journal.events, self.course.monitors).items():
            drawn = monitor_figure(event)
            if drawn:
                replace_file(folder.monitor(name), drawn.encode())

    def _may_be_due(self, round: int) -> bool:
        """Whether a round is measured, as far as can be told before it; patience may end a course at any evaluation."""
        course = self.course
        may_end = course.stopping.patience > 0 and round % course.evaluate_every == 0
        return round > 0 and (self._is_due(round) or may_end or round >= course.rounds)

    def _is_due(self, round: int) -> bool:
        every = self.course.monitor_every
        return every > 0 and round > 0 and round % every == 0

    def _marked(self, round: int) -> None:
        if self._is_due(round):
            self._measure_models(round)

    def _measure_models(self, round: int) -> bool:
        """Measure a round unless that is done; return False if there is no model to measure."""
        todo = self._unwritten(self._of_models, round)
        if not todo:
            return True
        started = time.perf_counter()
        view, source = self._view_of_models(round)
        self.seconds += time.perf_counter() - started
        if view.models:
            self._measure(todo, view, models=source)
        return bool(view.models)

    def _view_of_models(self, round: int) -> tuple[View, str]:
        """Return the clients' models of a round, and where they come from."""
        initial, clients = self.simulation.initial.params, self.simulation.clients
        memories = self.simulation.memories()
        replied = self._tap.models(round, initial)
        if replied:
            own = {c: {**clients[c].own, **memories[c].get("personal", {})} for c in replied}
            return _view(self.simulation, round, **_completed(replied, own)), "replies"
        shared = self._tap.shared(round)
        used = {client: self.course.algorithm.client_params(shared, memory) for client, memory in memories.items()}
        whole = {client: {**clients[client].own, **params} for client, params in used.items()}
        start = {**clients[self.simulation.runtime.clients[0]].own, **initial}
        own = {client: params for client, params in whole.items() if fits(params, start)}
        return _view(self.simulation, round, models=own), "memory"

    def _measure(self, names: Sequence[str], view: View, **facts: str) -> None:
        at = view.round
        for name in names:
            started = time.perf_counter()
            try:
                measured = MONITORS[name]().measure(view)
            except Exception as error:  # whatever a monitor raises must not end the course that it looks at
                text = f"{name} could not be measured in round {at}: {type(error).__name__}: {error}"
                self.journal.write("note", round=at, text=text)
                continue
            spent = time.perf_counter() - started
            self.seconds += spent
            self.journal.write("monitor", name=name, round=at, **facts, **measured.facts(), seconds=round(spent, 6))

    def _unwritten(self, names: Sequence[str], round: int) -> list[str]:
        events = [event for event in self.journal.events if event["event"] == "monitor"]
        written = {event["name"] for event in events if event["round"] == round}
        return [name for name in names if name not in written]


def _completed(replied: Mapping[str, Trained], own: Mapping[str, Params]) -> dict[str, Mapping[str, Any]]:
    """Return clients' whole models, where their training began, and their weights: replies with what is `own`."""
    return {
        "models": {client: {**own[client], **trained.params} for client, trained in replied.items()},
        "starts": {client: {**own[client], **trained.start} for client, trained in replied.items() if trained.start},
        "weights": {client: trained.weight for client, trained in replied.items() if trained.weight is not None},
    }


def _view(simulation: Simulation, round: int, **models: Mapping[str, Any]) -> View:
    course, (module, prepared) = simulation.course, simulation.to_look_at
    return View(
        round=round,
        seed=course.seed,
        task=course.task,
        algorithm=course.algorithm,
        module=module,
        whole=simulation.scenario.whole,
        prepared=prepared,
        parts=simulation.scenario.parts,
        clients=simulation.runtime.clients,
        **models,
    )
