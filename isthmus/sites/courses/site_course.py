"""A course between sites, from the agreement to the models; it pauses and goes on as silos leave and return."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.config.client_settings import check_client_settings
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_dict, course_to_yaml, load_course
from isthmus.config.registry import name_of
from isthmus.config.schedules import schedule_notes
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, CourseFailed, TooFewReplies, quoted
from isthmus.core.federation import Federation, InitialModel
from isthmus.core.training import Standing, evaluate, run_course, weighted_metric
from isthmus.data.folders.schema.column_names import feature_facts
from isthmus.learn.evaluate import Scores
from isthmus.runs.checkpoint import load_checkpoint
from isthmus.runs.folder import ID_FILE, RunFolder
from isthmus.runs.journal import Journal, replace_file
from isthmus.runs.life import Recorder, Watcher, finish
from isthmus.runs.result import Result
from isthmus.runs.simulation import torch_threads
from isthmus.runtime.remote import RemoteRuntime
from isthmus.sites.courses.hub import Hub, SiteTransport, receipts
from isthmus.sites.courses.messages import Finish, Proposal
from isthmus.sites.courses.silo_models import SiteModels

DEFAULT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Patience:
    """How long the server waits: for everybody before the start, and for enough sites to come back in a pause."""

    start_seconds: float = 60.0
    pause_seconds: float = 600.0
    num_retries: int = 2  # of a round that fails although enough sites are there
    retry_seconds: float = 1.0


class SiteCourse:
    """One course on the sites of a federation, with its run folder at the server.

    `on_pause` hears why the course waits, and an empty text when it goes on; `check` is called while it waits, and may
    raise to end it.
    """

    def __init__(
        self,
        course: Course,
        hub: Hub,
        sites: Sequence[str],
        run_dir: Path,
        *,
        patience: Patience | None = None,
        watchers: Sequence[Watcher] = (),
        say: Callable[[str], None] = print,
        on_pause: Callable[[str], None] = lambda reason: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.course = for_sites(course, sites)
        self.on_pause, self.check = on_pause, check
        self.hub, self.sites, self.run_dir = hub, tuple(sites), run_dir
        self.patience = patience or Patience()
        self.watchers, self.say = list(watchers), say
        self.timeout = course.timeout_seconds or DEFAULT_TIMEOUT_SECONDS

    # ---- start and resume

    def run(self) -> Result:
        """Run the course from its start."""
        RunFolder.check_new(self.run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(self.run_dir)
        replace_file(self.run_dir / ID_FILE, secrets.token_hex(16).encode())
        replace_file(folder.course, course_to_yaml(self.course).encode())
        return self._start(folder)

    def _start(self, folder: RunFolder) -> Result:
        journal = Journal(folder.journal, keep=False)
        journal.write("course", version=__version__, sites=list(self.sites), course=course_to_dict(self.course))
        for note in schedule_notes(self.course):
            self.say(note)
            journal.write("note", text=note)
        return self._to_the_end(folder, journal, None)

    def resume(self) -> Result:
        """Go on with the run in the run folder after the server was stopped or killed, or before it began."""
        folder = RunFolder.open(self.run_dir)
        if not folder.checkpoint.is_file() and not folder.journal.is_file():
            return self._start(folder)
        journal = Journal(folder.journal, keep=False)
        standing = None
        if folder.checkpoint.is_file():
            standing, _ = load_checkpoint(folder.checkpoint, course_digest(self.course), self.course.algorithm)
        if not journal.rewind(standing.round if standing else 0):
            journal.write("course", version=__version__, sites=list(self.sites), course=course_to_dict(self.course))
        journal.write("resume", after=standing.round if standing else 0)
        return self._to_the_end(folder, journal, standing)

    # ---- the way

    def _to_the_end(self, folder: RunFolder, journal: Journal, standing: Standing | None) -> Result:
        recorder = _SayingRecorder(journal, folder, course_digest(self.course), self.watchers, self.say)
        course_id = (self.run_dir / ID_FILE).read_text().strip()
        proposal = Proposal(course_id, course_to_yaml(self.course), __version__, self.sites)
        stated = getattr(self.course.dataset, "class_names", ()) if self.course.task.outputs_are_classes else ()
        models = SiteModels(self.course)
        transport = SiteTransport(
            self.hub,
            proposal,
            __version__,
            self.timeout,
            lambda site, text: self._note(journal, site, text),
            stated,
            models.freedom(),
            models.problem,
        )
        self._wait(transport, len(self.sites), self.patience.start_seconds, "the course starts")
        agreement = transport.agree()
        for site, text in agreement.holds.items():
            journal.write("client", client=site, text=text)
        model = models.initial(agreement)
        started = time.perf_counter()
        with torch_threads(self.course.threads):
            runtime, standing = self._rounds(transport, model, recorder, folder, journal, standing, course_id)
            seconds = time.perf_counter() - started
            for note in [*journal.failure_notes(), *journal.scoring_notes(standing.best_round)]:
                self.say(note)
                journal.write("note", text=note, at_end=True)
            result = self._result(runtime, model, standing, journal, agreement, seconds)
        # What the columns are called, only the silos know.
        columns = feature_facts((), agreement.features)
        finish(result, standing, journal, folder, {None: agreement.class_names}, {None: columns})
        self._finish(course_id, result, runtime, journal, transport)
        return result

    def _rounds(
        self,
        transport: SiteTransport,
        model: InitialModel,
        recorder: Recorder,
        folder: RunFolder,
        journal: Journal,
        standing: Standing | None,
        course_id: str,
    ) -> tuple[RemoteRuntime, Standing]:
        """Run rounds; below min_replies the course pauses until enough sites are back, and goes on where it was."""
        digest, algorithm = course_digest(self.course), self.course.algorithm
        failed: dict[int, int] = {}  # round -> how often it failed although enough sites were there
        while True:
            runtime = RemoteRuntime(
                course_id,
                self.sites,
                transport,
                starts_anew=algorithm.starts_anew,
                min_clients=self.course.min_replies,
                note=lambda site, text: self._note(journal, site, text),
            )
            if folder.checkpoint.is_file():
                standing, memories = load_checkpoint(folder.checkpoint, digest, algorithm)
                runtime.load_clients(memories)
            try:
                return runtime, run_course(algorithm, runtime, self.course.plan(), model, recorder, standing)
            except TooFewReplies as error:
                if len(transport.available()) >= self.course.min_replies:
                    # Nobody is missing: the silos fail, or answer with what cannot be used. A pause would not help.
                    round = standing.round if standing else 0
                    failed[round] = failed.get(round, 0) + 1
                    if failed[round] > self.patience.num_retries:
                        raise
                    self.check()
                    time.sleep(self.patience.retry_seconds)
                    continue
                self.on_pause(str(error))
                self.say(f"paused: {error}")
                journal.write("pause", reason=str(error))
                self._wait(transport, self.course.min_replies, self.patience.pause_seconds, "the course goes on")
                self.on_pause("")
                self.say("the course goes on")

    def _wait(self, transport: SiteTransport, number: int, seconds: float, purpose: str) -> None:
        """Wait until `number` sites can be asked; when time is up, min_replies are enough, fewer are an error."""
        deadline = time.monotonic() + seconds
        told = False
        while True:
            self.check()
            present = sorted(transport.available())
            if len(present) >= number:
                return
            if not told:
                away = sorted(set(self.sites) - set(present))
                self.say(f"waiting for {', '.join(away)}, at most {seconds:.0f} s, before {purpose}")
                told = True
            if time.monotonic() > deadline:
                if len(present) >= self.course.min_replies:
                    return
                raise CourseFailed(
                    f"{len(present)} of {len(self.sites)} sites are connected ({', '.join(present) or 'none'}), "
                    f"{self.course.min_replies} are needed; waited {seconds:.0f} s"
                )
            time.sleep(0.05)

    def _note(self, journal: Journal, site: str, text: str) -> None:
        self.say(f"{site} {text}")
        journal.write("note", text=f"{site} {text}")

    # ---- the end

    def _result(
        self,
        runtime: RemoteRuntime,
        model: InitialModel,
        standing: Standing,
        journal: Journal,
        agreement: Any,
        seconds: float,
    ) -> Result:
        algorithm, plan = self.course.algorithm, self.course.plan()
        fed = Federation(
            runtime,
            seed=plan.seed,
            round=standing.round,
            cohort=self.sites,
            model=model,
            rules=plan.rules,
            report=journal.exchanged,
        )
        found = evaluate(algorithm, standing.best_state, fed, ("test",), plan.stopping.metric, best=True)
        names = sorted({name for e in found.values() for name in e.metrics.get("test", {})})
        mean: Scores = {name: weighted_metric(found, "test", name) for name in names}
        mode = "local_model" if algorithm.has_personal_models or model.personal else "global_model"
        exchanges = [event for event in journal.events if event["event"] == "exchange"]
        return Result(
            course=self.course,
            metrics={f"{mode}/local_graph": mean},
            client_scores={site: dict(e.metrics.get("test", {})) for site, e in found.items()},
            num_rounds=standing.round,
            best_round=standing.best_round,
            seconds=seconds,
            bytes_down=sum(event["bytes_down"] for event in exchanges),
            bytes_up=sum(event["bytes_up"] for event in exchanges),
            input_dim=agreement.input_dim,
            output_dim=agreement.output_dim,
            params=algorithm.global_params(standing.best_state),
            client_params={},
            events=journal.events,
            notes=[event["text"] for event in journal.events if event["event"] == "note"],
            run_dir=self.run_dir,
            clients=self.sites,
        )

    def _finish(
        self, course_id: str, result: Result, runtime: RemoteRuntime, journal: Journal, transport: SiteTransport
    ) -> None:
        """Tell every silo that can be asked that the course is over, so that it keeps its model."""
        names: Mapping[str, bytes] = runtime.save_clients()
        available = transport.available()
        present = [site for site in runtime.clients if site in available]
        messages = {site: encode(Finish(course_id, result.params, names[site].decode())) for site in present}
        for site, problem in receipts(self.hub.ask("finish", messages, self.timeout)).items():
            if problem:
                self._note(journal, site, f"did not keep its model: {problem}")


class _SayingRecorder(Recorder):
    """Writes journal and checkpoints, and says what the algorithm has to say."""

    def __init__(
        self,
        journal: Journal,
        folder: RunFolder,
        digest: str,
        watchers: Sequence[Watcher],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(journal, folder, digest, watchers)
        self.say = say

    def noted(self, round: int, text: str) -> None:
        """Write and say it."""
        super().noted(round, text)
        self.say(text)


def for_sites(course: Course, sites: Sequence[str]) -> Course:
    """Return a course as it is run between sites; refuse what exists in simulation only."""
    # What a silo answered must never be asked again after a crash, so every round is saved.
    try:
        course = replace(course, checkpoint_every=1, num_clients=len(sites))
    except ValueError as error:
        raise BadInput(str(error)) from None
    if course.algorithm.pooled:
        raise BadInput(f"{name_of(type(course.algorithm))} needs the whole graph in one place")
    check_client_settings(course, sites)
    if course.monitors:
        raise BadInput(
            f"monitors has {course.monitors[0]!r}; between sites nobody may hold all models and graphs, so "
            "monitors are for simulation only: leave monitors empty"
        )
    return course


def course_of(run_dir: Path) -> Course:
    """Return the course of a run folder."""
    folder = RunFolder.open(run_dir)
    if not (run_dir / ID_FILE).is_file():
        raise BadInput(
            f"{run_dir} is not the run of a course between sites; go on with: isthmus run --resume {quoted(run_dir)}"
        )
    return load_course(folder.course, allow_import=False)  # it may have come from elsewhere
