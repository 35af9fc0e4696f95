"""The silo's side, apart from the network: proposals, exchanges and the end of a course, bytes in, bytes out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isthmus import __version__
from isthmus.config.course import Course
from isthmus.config.load import course_digest, course_to_yaml, load_course, own_algorithm, own_batching
from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import BadInput, BadMessage, quoted
from isthmus.core.guards.line import GuardLine
from isthmus.core.guards.settled import SettledFile
from isthmus.core.outside import foreign, parse_yaml, replace_file
from isthmus.core.protocol import Failure
from isthmus.core.record import CPU, Params, Record
from isthmus.data.features import name_differences
from isthmus.data.folders.own_folder import OwnData
from isthmus.data.folders.schema.schema import digest_at
from isthmus.data.graph import feature_facts
from isthmus.learn.graph_client import GraphClient
from isthmus.runs.folder import ID_FILE, RunFolder, save_model_file
from isthmus.runs.simulation import build_model, columns_of, known_parameters, output_dim, personal_start, torch_threads
from isthmus.runtime.answering import MemoryStore, Silo, memory_owner
from isthmus.runtime.envelope import BLANK, Answer
from isthmus.runtime.reasons import Reasons, Refusal, refused_as
from isthmus.runtime.seldom import Seldom
from isthmus.sites.courses.agreement import OTHER_COLUMNS
from isthmus.sites.courses.messages import (
    NO_POINTS,
    NOT_AGREED,
    AskColumns,
    Columns,
    Finish,
    Passed,
    PassOn,
    Proposal,
    Receipt,
    Terms,
    Verdict,
)
from isthmus.sites.silo.consent import Identity
from isthmus.sites.silo.hand import Hand
from isthmus.sites.silo.matching import KEYS_FILE, PRIVATE, Matching, keys_by_secret
from isthmus.sites.silo.patience import TookTooLong, time_limit
from isthmus.sites.silo.policy import Policy
from isthmus.sites.silo.seen import DATA_FILE, DataSeen
from isthmus.sites.silo.state import BOOK_FILE, OwnSecret, mark_finished, prune
from isthmus.sites.silo.studies import Studies, names_study
from isthmus.sites.silo.terms import own_dataset, read_own, terms_of

MAX_COURSE_CHARACTERS = 2**16
MAX_COLUMNS_CHARACTERS = 10**6  # of names that are told where another silo has other ones
MAX_SAID = 50  # lines of one kind that messages of the server bring about, in a minute; the rest are counted
_COURSE_ID = re.compile(r"[0-9a-f]{8,64}")


@dataclass
class _Agreed:
    """The course that a silo agreed to last."""

    proposal: Proposal
    course: Course
    silo: Silo
    counted: bool  # whether it was seen that as many silos signed it as the policy asks for
    held: OwnData[Any] | None  # what it read for the course, until it has answered once
    matching: Matching | None = None


class SiloService:
    """One silo: its data, its policy, its folder for memories and models; the secret it shares with other silos."""

    def __init__(
        self,
        name: str,
        data: Path,
        state: Path,
        policy: Policy | None = None,
        say: Callable[[str], None] = print,
        id_secret: bytes | None = None,
        identity: Identity | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.name = name
        self.device = device  # where this silo computes: its own choice, whatever the course says
        self.data = data
        self.state = state
        self.policy = policy or Policy()
        self.say = say
        self.id_secret = id_secret
        self.own_secret = OwnSecret(state, say)
        self.identity = identity  # of a silo with a certificate: it signs what it agrees to, and counts who else did
        self._tell = Seldom(lambda text: self.say(text), burst=MAX_SAID)
        self.book = SettledFile(state / BOOK_FILE, lambda text: self._tell("book", text))
        self._seen = DataSeen(lambda text: self._tell("data", text))
        self.studies = Studies(state)
        self.expelled: Callable[[], Collection[str]] = frozenset  # whose names count no more
        self.refused: str = ""  # why the federation does not want this silo, if so
        self._last: _Agreed | None = None
        prune(state, self.policy)

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer a message of the server's, whatever it is."""
        if len(data) > self.policy.max_message_bytes:
            problem = f"message of {len(data)} bytes is above this silo's limit of {self.policy.max_message_bytes}"
            return self._failure(kind, "policy", problem)
        try:
            with time_limit(self.policy.max_request_seconds):
                return self._answer(kind, data)
        except TookTooLong:
            problem = f"it took longer than this silo's limit of {self.policy.max_request_seconds:g} s"
            return self._failure(kind, "policy", problem, "late")
        except Refusal as error:
            return self._failure(kind, error.kind, str(error))
        except BadMessage as error:
            return self._failure(kind, "message", str(error))
        except Exception as error:  # whatever a message brings about must not end the silo's process
            return self._failure(kind, "error", f"{type(error).__name__}: {error}")

    @property
    def reasons(self) -> Reasons:
        """How this silo tells why it does not do something."""
        return Reasons(lambda text: self._tell("could not", text), self.policy.tell_reasons)

    def _answer(self, kind: str, data: bytes) -> bytes:
        if kind == "exchange":
            return self._exchange(data)
        if kind == "ping":
            return encode(Receipt(""))
        handlers: dict[str, tuple[type[Record], Callable[[Any], Record]]] = {
            "propose": (Proposal, self._propose),
            "columns": (AskColumns, self._columns),
            "verdict": (Verdict, self._verdict),
            "finish": (Finish, self._finish),
            "match": (PassOn, self._pass_on),
        }
        if kind not in handlers:
            raise BadMessage(f"there is no message of the kind {kind[:40]!r}")
        message, handle = handlers[kind]
        return encode(handle(decode(data, message)))

    def _failure(self, kind: str, why: str, problem: str, failure: str = "refused") -> bytes:
        """Say here what is wrong with a message, and tell the server of which kind that is."""
        self._tell("refused", f"refused a message of the kind {kind[:40]!r}: {problem}")
        told = self.reasons.crossing(why, problem)
        if kind == "exchange":
            return encode(Answer(pack(b""), Failure(self.name, failure, told), BLANK))
        others: dict[str, Record] = {"propose": self._terms(told), "match": Passed(told, NO_POINTS)}
        return encode(others.get(kind, Receipt(told)))

    # ---- before the course

    def _propose(self, proposal: Proposal) -> Terms:
        try:
            course = self._readable(proposal)
            with refused_as("course"):
                refusal = self.policy.refusal(course, self._counted(proposal.sites))
            if refusal:
                raise Refusal("policy", refusal)
            self._check_trial(proposal)
            with refused_as("data"):
                folder = self._read(course)
            terms = terms_of(course, folder, self.name, self.policy)
            if self.identity is not None:
                terms = replace(terms, consent=self.identity.sign(proposal.course_id, proposal.course))
            with refused_as("course"):
                silo, matching = self._silo(proposal, course, folder)
            terms = replace(terms, changed=self._seen.changed(silo.store.folder, folder))
            prune(self.state, self.policy, silo.store.folder)
            counted = self.identity is None or self.policy.min_sites <= 1
            self._last = _Agreed(proposal, course, silo, counted, folder, matching)
        except Refusal as error:
            self._tell("stays away", f"stays away from a course: {error}")
            return self._terms(self.reasons.crossing(error.kind, str(error)))
        own = "; its own split stands, masks are not used" if folder.own_split else ""
        algorithm = type(course.algorithm).__name__
        self._tell("takes part", f"takes part in a course of {len(proposal.sites)} sites: {algorithm}{own}")
        return terms

    def _check_trial(self, proposal: Proposal) -> None:
        """Refuse a course of a study that has had as many here as the policy allows."""
        study = proposal.study
        if study and not names_study(study):
            raise Refusal("course", f"{study[:40]!r} cannot name a study")
        refusal = self.policy.refusal_of_trial(self.studies.others(study, proposal.course_id)) if study else ""
        if refusal:
            raise Refusal("trials", refusal)

    def _counted(self, sites: tuple[str, ...]) -> tuple[str, ...]:
        """Return the sites of a course without those that were expelled."""
        return tuple(site for site in sites if site not in self.expelled())

    def _readable(self, proposal: Proposal) -> Course:
        """Return the course of a proposal, if it is one that this version of the package can carry out."""
        if not _COURSE_ID.fullmatch(proposal.course_id):
            raise Refusal("course", f"{proposal.course_id[:40]!r} cannot name a course")
        if proposal.version != __version__:
            raise Refusal(
                "version",
                f"the server runs isthmus {proposal.version}, this silo {__version__}; install the same version",
            )
        with refused_as("course"):
            return read_course(proposal.course)

    def _terms(self, refusal: str) -> Terms:
        return Terms(refusal, __version__, 0, 0, (), "")

    def _read(self, course: Course) -> OwnData[Any]:
        with refused_as("course"):
            dataset = own_dataset(course)
        return read_own(course, dataset, self.data, self.name)

    def _silo(self, proposal: Proposal, course: Course, folder: OwnData[Any]) -> tuple[Silo, Matching | None]:
        course_id, data = proposal.course_id, folder.data
        into, out = course.task.input_dim(data), output_dim(course, data, self.name)
        # Settings come with the course, from elsewhere: they may name installed parts only, as the course itself.
        with torch.device("meta"):  # only their names count: the models of the others take no memory here
            known = known_parameters(course, allow_import=False)
        batching = own_batching(course, self.name, allow_import=False)
        algorithm = own_algorithm(course, self.name, allow_import=False)
        owner = memory_owner(course.algorithm, f"{course_id} {course_digest(course)}")
        folder_of_course = self.state / "memories" / f"{course_id}-{owner[:16]}"
        store = MemoryStore(folder_of_course, owner, (DATA_FILE, KEYS_FILE))
        matching = self._matching(course, course_id, folder, store)
        with refused_as("data"):
            found = matching.keys() if matching else keys_by_secret(self.id_secret, course_id, folder, self.device)
        keys, neighbors = found
        secret = self.own_secret.for_course(course_id, proposal.course)
        if (algorithm or course.algorithm).protecting_streams or course.guards:
            self.own_secret.begun(course_id)

        def client() -> GraphClient:
            model = build_model(course, into, out, self.name, allow_import=False)
            own = personal_start(course, model, known)
            made = GraphClient(self.name, data, course.task, model, batching, own, self.device)
            made.node_keys, made.foreign = keys, neighbors
            made.algorithm, made.secret, made.guards = algorithm, secret, GuardLine(course.guards)
            made.course, made.book, made.signer = course_id, self.book, self._hand()
            return made

        return Silo(course_id, course.algorithm, client, store, self.policy.max_message_bytes, self.reasons), matching

    def _hand(self) -> Hand | None:
        return None if self.identity is None else Hand(self.identity, lambda: self.expelled())

    def _matching(self, course: Course, course_id: str, folder: OwnData[Any], store: MemoryStore) -> Matching | None:
        """Return this silo's part in matching ids, where the course has them go round all silos."""
        if own_dataset(course).match_ids != PRIVATE:
            return None
        with refused_as("data"):
            return Matching(self.name, course_id, folder, store.folder / KEYS_FILE, self._hand(), self.device)

    def _pass_on(self, request: PassOn) -> Passed:
        """Do this silo's part in a round of the ring; what is wrong with it ends the ring, and the course."""
        agreed = self._agreed(request.course_id)
        if agreed is None or not agreed.counted or agreed.matching is None:
            raise Refusal("message", "this silo takes part in no such ring")
        ring, sites = request.ring, agreed.proposal.sites
        if len(set(ring)) != len(ring) or self.name not in ring or set(ring) - set(sites):
            raise Refusal("message", "the ring is not of this silo and others of the course, each once")
        if len(self._counted(ring)) < max(2, self.policy.min_sites):
            raise Refusal("policy", f"{len(ring)} silos are in the ring, its policy asks for {self.policy.min_sites}")
        handed = agreed.matching.passed(request)
        if request.step == len(ring):
            agreed.silo.client.node_keys, agreed.silo.client.foreign = agreed.matching.keys()
            told = ", ".join(f"{site} {number}" for site, number in sorted(agreed.matching.told.items()))
            self._tell("matched", f"ids went round {len(ring)} silos, blinded: {told}")
        return Passed("", handed)

    def _agreed(self, course_id: str) -> _Agreed | None:
        """Return the course of an id, if this silo agreed to it and to none since."""
        return self._last if self._last is not None and self._last.proposal.course_id == course_id else None

    def _columns(self, question: AskColumns) -> Columns:
        """Return what this silo's feature columns are called, so that one that has other ones can be told which."""
        agreed = self._agreed(question.course_id)
        if agreed is None or not self.policy.share_columns:
            return Columns(())
        names = columns_of(agreed.course, agreed.silo.client.data)
        if sum(map(len, names)) > MAX_COLUMNS_CHARACTERS:
            return Columns(())
        self._tell("columns", f"told the names of its {len(names)} feature columns: another silo has other ones")
        return Columns(names)

    def _verdict(self, verdict: Verdict) -> Receipt:
        verdict = replace(verdict, refusal=foreign(verdict.refusal))
        agreed = self._agreed(verdict.course_id)
        if verdict.refusal:
            own = () if agreed is None else columns_of(agreed.course, agreed.silo.client.data)
            self._last = None if agreed else self._last
            self.refused = verdict.refusal
            self._tell("was refused", f"was refused: {verdict.refusal}{_difference(own, verdict)}")
        elif agreed is not None and not agreed.counted:
            self._count_consents(agreed, verdict)
        return Receipt("")

    def _count_consents(self, agreed: _Agreed, verdict: Verdict) -> None:
        """See whether as many silos as the policy asks for signed this very course; else leave it."""
        assert self.identity is not None
        proposal = agreed.proposal
        signed = {site: verdict.consents[site] for site in proposal.sites if site in verdict.consents}
        number, problems = self.identity.count(proposal.course_id, proposal.course, signed)
        if number < self.policy.min_sites:
            self._last = None
            wrong = "".join(f"; {site}: {problem}" for site, problem in sorted(problems.items())[:3])
            raise Refusal(
                "policy",
                f"{number} silos with a certificate of the federation signed this course, the policy asks for "
                f"{self.policy.min_sites}{wrong}",
            )
        agreed.counted = True
        self._tell("signed", f"{number} silos of the federation signed this course")

    # ---- during and after the course

    def _exchange(self, data: bytes) -> bytes:
        agreed = self._last
        if agreed is None:
            return NOT_AGREED
        if not agreed.counted:
            raise Refusal("policy", "it is not yet seen that as many silos signed this course as the policy asks for")
        least = self.policy.min_sites
        if len(self._counted(agreed.proposal.sites)) < least:
            raise Refusal("policy", f"its policy asks for {least} sites at least; some of this course's were expelled")
        if agreed.held is not None and agreed.proposal.study:  # now that it answers, and not for a proposal
            self.studies.keep(agreed.proposal.study, agreed.proposal.course_id)
        self._seen.keep(agreed.silo.store.folder, agreed.held)
        agreed.held = None
        # The last bits of a result depend on the number of threads; more than there are cores help nobody.
        with torch_threads(min(agreed.course.threads, os.cpu_count() or 1)):
            return agreed.silo.answer(data)

    def _finish(self, finish: Finish) -> Receipt:
        """Keep the model that this silo would use: the global one, or its own where the method has personal parts."""
        agreed = self._agreed(finish.course_id)
        if agreed is None:
            raise Refusal("message", f"course {finish.course_id[:40]!r} is over, but this silo has not agreed to it")
        course, silo = agreed.course, agreed.silo
        memory = course.algorithm.best_memory(silo.store.load(finish.memory))
        params = course.algorithm.client_params(finish.params, memory)
        if params:
            params = silo.client.complete(params)
            data = self._read(course).data
            facts = {
                "input_dim": str(course.task.input_dim(data)),
                "output_dim": str(output_dim(course, data, self.name)),
                "class_names": json.dumps(list(course.task.output_names(data))),
                **feature_facts(columns_of(course, data), schema=digest_at(self.data)),
                "client": self.name,
            }
            path = self.state / "models" / f"{finish.course_id}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_model_file(path, params, facts)
            self._tell("over", f"the course is over; this silo's model: {path}")
            run = self._keep_run(agreed, params, course.algorithm.client_parts(memory), facts)
            self._tell("use", f"to use it: isthmus predict {quoted(run)} --client {quoted(self.name)} --graph FOLDER")
        self.own_secret.ended(finish.course_id)
        mark_finished(silo.store.folder)
        prune(self.state, self.policy, silo.store.folder)
        return Receipt("")

    def _keep_run(self, agreed: _Agreed, params: Params, parts: Params, facts: Mapping[str, str]) -> Path:
        """Write what `isthmus predict` needs: a run folder with this silo's model, and what its method adds to it."""
        folder = RunFolder(self.state / "runs" / agreed.proposal.course_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        # A course that came from elsewhere may name installed parts only, also when it is read again.
        replace_file(folder.path / ID_FILE, agreed.proposal.course_id.encode())
        replace_file(folder.course, course_to_yaml(agreed.course).encode())
        folder.save_models({}, {self.name: params}, lambda client: facts)
        folder.save_parts({self.name: parts})
        return folder.path


def _difference(own: tuple[str, ...], verdict: Verdict) -> str:
    """Return for this silo's own screen what is different about its columns, where that is the reason."""
    if verdict.columns:
        return ": " + "; ".join(name_differences(own, verdict.columns, "the others'"))
    if verdict.refusal == OTHER_COLUMNS:
        return "; which ones, nobody tells: compare schemas (isthmus data schema)"
    return ""


def read_course(text: str) -> Course:
    """Return the course in a YAML text from elsewhere: installed parts only, never an import path."""
    raw = parse_yaml(text, "the course", max_characters=MAX_COURSE_CHARACTERS)
    if not isinstance(raw, dict):
        raise BadInput(f"the course is {type(raw).__name__}, expected keys and values")
    return load_course(raw, allow_import=False)
