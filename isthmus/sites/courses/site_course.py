"""A course between sites, from the agreement to the models; it pauses and goes on as silos leave and return."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isthmus import __version__
from isthmus.config.build import name_of
from isthmus.config.course import Course, schedule_notes
from isthmus.config.load import check_client_settings, course_digest, course_to_yaml, load_course
from isthmus.core.codec import encode
from isthmus.core.errors import BadInput, CourseFailed, IsthmusError, TooFewReplies, quoted
from isthmus.core.outside import read_yaml, replace_file
from isthmus.core.random import Secret
from isthmus.core.training import Callback, Standing, finished, run_course
from isthmus.data.folders.graph_folder import Folder
from isthmus.data.folders.schema.schema import SCHEMA_FILE, read_schema
from isthmus.data.graph import feature_facts
from isthmus.runs.folder import ID_FILE, Journal, RunFolder, load_checkpoint
from isthmus.runs.life import Life, Outcome, Result
from isthmus.runs.simulation import torch_threads
from isthmus.runtime.remote import RemoteRuntime
from isthmus.sites.courses.agreement import SiteModels
from isthmus.sites.courses.hub import Hub, SiteTransport, problems_of
from isthmus.sites.courses.messages import Finish, Proposal
from isthmus.sites.courses.own_graph import own_client, require_own_graph
from isthmus.sites.courses.ring import RingBroken, go_round
from isthmus.sites.silo.state import SECRET_FILE, server_secret
from isthmus.sites.silo.terms import own_dataset

# Key of the course -> why a value for it would be ignored: it is refused.
MEANINGLESS = {
    "splitter": "nothing is split, every silo brings its own data",
    "global_graph": "there is no global graph",
    "runtime": "every silo answers for itself",
    "block_mb": "every silo answers for itself",
    "device": "every silo chooses its own (isthmus join --device)",
    "checkpoint_every": "every round is saved",
    "sinks": "metrics go to the journal only",
    "monitor_every": "monitors are for simulation only",
}
ALSO_FINE = {"checkpoint_every": 1}  # what a course that was run between sites says
DEFAULT_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Patience:
    """How long the server waits: for everybody before the start, and for enough sites to come back in a pause."""

    start_seconds: float = 60.0
    pause_seconds: float = 600.0
    num_retries: int = 2  # of a round that fails although enough sites are there
    retry_seconds: float = 1.0


class Frozen(IsthmusError):
    """A course was left after the round that it was wanted for; it goes on from its checkpoint."""

    def __init__(self, round: int) -> None:
        super().__init__(f"frozen after round {round}")


class SiteCourse(Life, Callback):
    """One course on the sites of a federation, with its run folder at the server.

    `on_pause` hears why the course waits, and an empty text when it goes on; `check` is called while it waits, and may
    raise to end it. `graph` is the folder of a graph of the server's own, for courses that go by one. With `until` the
    course is frozen after that round; `study` names the study that it is a trial of, in which all silos take part, or
    it would be compared with trials on other data.
    """

    def __init__(
        self,
        course: Course,
        hub: Hub,
        sites: Sequence[str],
        run_dir: Path,
        *,
        patience: Patience | None = None,
        callbacks: Sequence[Callback] = (),
        say: Callable[[str], None] = print,
        on_pause: Callable[[str], None] = lambda reason: None,
        check: Callable[[], None] = lambda: None,
        graph: Path | None = None,
        study: str = "",
        until: int = 0,
    ) -> None:
        self.folder: RunFolder = RunFolder(run_dir)
        journal = Journal(self.folder.journal, keep=False)
        super().__init__(for_sites(course, sites), self.folder, journal, [self, *callbacks], say)
        require_own_graph(self.course, graph)
        self.on_pause, self.check, self.graph = on_pause, check, graph
        self.study, self.until = study, until or None
        self.hub, self.sites, self.run_dir = hub, tuple(sites), run_dir
        self.patience = patience or Patience()
        self.timeout = course.timeout_seconds or DEFAULT_TIMEOUT_SECONDS

    @property
    def num_needed(self) -> int:
        """With fewer sites the course waits: those that it asks for, or that a guard of it cannot do without."""
        return max(self.course.min_replies, *(guard.least_clients for guard in self.course.guards), 1)

    # ---- start and resume

    def run(self) -> Result:
        """Run the course from its start."""
        RunFolder.check_new(self.run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        replace_file(self.run_dir / ID_FILE, secrets.token_hex(16).encode())
        replace_file(self.folder.course, course_to_yaml(self.course).encode())
        return self.resume()

    def _own_secret(self, begun: bool) -> Secret | None:
        """Return what this server's half of the guards draws from; without guards it draws nothing."""
        return server_secret(self.run_dir / SECRET_FILE, begun) if self.course.guards else None

    def resume(self) -> Result:
        """Go on with the run in the run folder after the server was stopped or killed, or before it began."""
        folder, standing = RunFolder.open(self.run_dir), None
        if folder.checkpoint.is_file():
            standing, _ = load_checkpoint(folder.checkpoint, course_digest(self.course), self.course.algorithm)
        # Where there is a journal, it may have drawn from its secret already, with or without a checkpoint.
        self.secret = self._own_secret(begun=standing is not None or folder.journal.is_file())
        if standing is None and not folder.journal.is_file():
            self.introduce(sites=list(self.sites))
            for note in schedule_notes(self.course):
                self.note(note)
        else:
            after = standing.round if standing else 0
            if not self.journal.rewind(after):
                self.introduce(sites=list(self.sites))
            self.journal.write("resume", after=after)
        self.course_id = (self.run_dir / ID_FILE).read_text().strip()
        self._agree()
        if standing is None:
            self._match()
        with torch_threads(self.course.threads):
            standing, seconds = self.train(standing)
            if not finished(self.course.plan(), standing):
                raise Frozen(standing.round)
            result = self.wound_up(standing, seconds)
        self._finish(result)
        return result

    def noted(self, round: int, text: str) -> None:
        """Say what the algorithm has to say; the journal has it too."""
        self.say(text)

    # ---- the way

    def _agree(self) -> None:
        """Find out who takes part and what is trained."""
        proposal = Proposal(self.course_id, course_to_yaml(self.course), __version__, self.sites, self.study)
        models = SiteModels(self.course)
        self.transport = SiteTransport(self.hub, proposal, self.timeout, models, self._note_of)
        self._wait(len(self.sites), self.patience.start_seconds, "the course starts")
        self.agreement = self.transport.agree()
        if self.study:
            self._require_all()
        for site, text in self.agreement.holds.items():
            self.journal.write("client", client=site, text=text)
        self.model = models.initial(self.agreement)
        self.own = own_client(self.course, self.graph, self.transport, self.secret)

    def _require_all(self) -> None:
        """Refuse to train a trial of a study on fewer silos than others of it."""
        away = sorted(set(self.sites) - set(self.agreement.holds))
        if away:
            told = "; ".join(f"{site}: {self.agreement.refused.get(site, 'it does not answer')}" for site in away)
            raise CourseFailed(
                f"a trial of a study needs all silos of the federation, to be compared with others; {told}"
            )

    def _match(self) -> None:
        """Let ids go round all silos that take part, where the course asks for that; who comes late has no keys."""
        if own_dataset(self.course).match_ids != "private":
            return
        ring = tuple(sorted(self.agreement.holds))
        if len(ring) < 2:
            raise CourseFailed(f"ids are matched between two silos at least, {len(ring)} takes part")
        for left in reversed(range(self.patience.num_retries + 1)):
            try:
                numbers = go_round(self.hub, self.course_id, ring, self.timeout)
                break
            except RingBroken as error:
                if not left:
                    raise
                self.say(f"{error}; the ring is begun anew")
                self._wait(len(ring), self.patience.pause_seconds, "ids are matched")
                self.transport.settle(ring)
        told = ", ".join(f"{site} {number}" for site, number in numbers.items())
        self.note(f"ids went round all silos, blinded: {told}")

    def _note_of(self, site: str, text: str) -> None:
        self.note(f"{site} {text}")

    def train(self, standing: Standing | None) -> tuple[Standing, float]:
        """Run rounds; below what is needed the course pauses until enough sites are back, and goes on where it was."""
        algorithm, started = self.course.algorithm, time.perf_counter()
        failed: dict[int, int] = {}  # round -> how often it failed although enough sites were there
        while True:
            self.runtime = RemoteRuntime(
                self.course_id,
                self.sites,
                self.transport,
                starts_anew=algorithm.starts_anew,
                min_clients=self.num_needed,
                note=self._note_of,
            )
            if self.folder.checkpoint.is_file():
                standing, memories = load_checkpoint(self.folder.checkpoint, course_digest(self.course), algorithm)
                self.runtime.load_clients(memories)
            try:
                plan = self.course.plan()
                standing = run_course(
                    algorithm,
                    self.runtime,
                    plan,
                    self.model,
                    self.callbacks,
                    standing,
                    self.secret,
                    self.own,
                    until=self.until,
                )
                return standing, time.perf_counter() - started
            except TooFewReplies as error:
                if len(self.transport.available()) >= self.num_needed:
                    # Nobody is missing: the silos fail, or answer with what cannot be used. A pause would not help.
                    round = standing.round if standing else 0
                    failed[round] = failed.get(round, 0) + 1
                    if failed[round] > self.patience.num_retries:
                        raise
                    self.check()
                    time.sleep(self.patience.retry_seconds)
                    continue
                self._pause(str(error))

    def _pause(self, reason: str) -> None:
        """Wait until enough sites are back."""
        self.on_pause(reason)
        self.say(f"paused: {reason}")
        self.journal.write("pause", reason=reason)
        self._wait(self.num_needed, self.patience.pause_seconds, "the course goes on")
        self.on_pause("")
        self.say("the course goes on")

    def _wait(self, number: int, seconds: float, purpose: str) -> None:
        """Wait until `number` sites can be asked; when time is up, what is needed is enough, fewer are an error."""
        deadline = time.monotonic() + seconds
        told = False
        while True:
            self.check()
            present = sorted(self.transport.available())
            if len(present) >= number:
                return
            if not told:
                away = sorted(set(self.sites) - set(present))
                self.say(f"waiting for {', '.join(away)}, at most {seconds:.0f} s, before {purpose}")
                told = True
            if time.monotonic() > deadline:
                if len(present) >= self.num_needed:
                    return
                raise CourseFailed(
                    f"{len(present)} of {len(self.sites)} sites are connected ({', '.join(present) or 'none'}), "
                    f"{self.num_needed} are needed; waited {seconds:.0f} s"
                )
            time.sleep(0.05)

    # ---- the end

    def score(self, standing: Standing) -> Outcome:
        """Ask the silos; nobody else has their graphs, or their models."""
        mean, each = self.asked(self.runtime, self.model, standing, self.journal.exchanged)
        personal = self.course.algorithm.has_personal_models or self.model.personal
        return Outcome(
            metrics={f"{'local_model' if personal else 'global_model'}/local_graph": mean},
            client_scores=each,
            clients=self.sites,
            input_dim=self.agreement.input_dim,
            output_dim=self.agreement.output_dim,
            class_names={None: self.agreement.class_names},
            # The names of the columns only the silos know.
            features={None: feature_facts((), self.agreement.features, self.agreement.schema)},
        )

    def _finish(self, result: Result) -> None:
        """Tell every silo that can be asked that the course is over, so that it keeps its model."""
        names: Mapping[str, bytes] = self.runtime.save_clients()
        available = self.transport.available()
        present = [site for site in self.runtime.clients if site in available]
        messages = {site: encode(Finish(self.course_id, result.params, names[site].decode())) for site in present}
        for site, problem in problems_of(self.hub.ask("finish", messages, self.timeout)):
            self.note(f"{site} did not keep its model: {problem}")


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


def load_site_course(
    source: Path | None,
    overrides: Sequence[str],
    num_sites: int,
    say: Callable[[str], None] = print,
    schema: Path | None = None,
) -> Course:
    """Load a course for the sites of a federation, who follow a schema's file if one is given.

    Refuses what would be ignored between sites.
    """
    stated = source is not None and "num_clients" in read_yaml(source)
    # What the words say of it comes later, and counts.
    number = [] if stated else [f"num_clients={num_sites}"]
    course = load_course(source, [*number, *overrides], say=say)
    refuse_meaningless(course, num_sites)
    return with_schema(course, schema)


def with_schema(course: Course, source: Path | None) -> Course:
    """Return a course whose silos must follow a schema's file, if there is one: its digest and classes are theirs."""
    if source is None:
        return course
    schema, dataset = read_schema(source), course.dataset
    if not isinstance(dataset, Folder):
        raise BadInput(
            f"{source} is a schema of nodes, but dataset.name is {name_of(type(dataset))!r}; only dataset.name=folder "
            "has schemas"
        )
    for key, wanted in (("schema_digest", schema.digest), ("class_names", schema.classes)):
        stated = getattr(dataset, key)
        if stated and stated != wanted:
            raise BadInput(
                f"dataset.{key} is {stated!r}, but {source} has {wanted!r}; leave it out of the course, or give "
                "another schema"
            )
    return replace(course, dataset=replace(dataset, schema_digest=schema.digest, class_names=schema.classes))


def keep_schema(run_dir: Path, schema: Path | None) -> None:
    """Put the schema into the run folder, so that isthmus predict can say what the model's columns are."""
    if schema is not None:
        replace_file(run_dir / SCHEMA_FILE, schema.read_bytes())


def refuse_meaningless(course: Course, num_sites: int) -> None:
    """Raise BadInput where a course sets what nobody would heed."""
    if course.num_clients != num_sites:
        raise BadInput(
            f"num_clients is {course.num_clients}, but the federation has {num_sites} sites: leave num_clients out"
        )
    dataset = own_dataset(course)
    if dataset.path:
        raise BadInput(
            f"dataset.path is {dataset.path!r}; between sites every silo brings its own folder: leave dataset.path out"
        )
    plain = Course()
    for key, why in MEANINGLESS.items():
        value = getattr(course, key)
        if value not in (getattr(plain, key), ALSO_FINE.get(key)):
            shown = value if isinstance(value, (str, int, tuple)) else name_of(type(value))
            raise BadInput(f"{key} is {shown!r}, which means nothing between sites ({why}): leave {key} out")
