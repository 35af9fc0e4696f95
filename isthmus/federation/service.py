"""The silo's side, apart from the network: proposals, exchanges and the end of a course, bytes in, bytes out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from isthmus import __version__
from isthmus.config.client_settings import own_algorithm, own_batching
from isthmus.config.course import Course
from isthmus.config.load import course_to_yaml, load_course
from isthmus.config.tables import name_of
from isthmus.core.codec import decode, encode, pack
from isthmus.core.errors import BadInput, BadMessage, IsthmusError
from isthmus.core.protocol import Failure
from isthmus.core.random import numpy_generator
from isthmus.core.record import Params, Record
from isthmus.data.masks import labelled_items, without_examples
from isthmus.data.own_data import OwnData
from isthmus.data.sources import GraphFolder
from isthmus.data.zoo.own_folder import OwnFolder
from isthmus.data.zoo.own_kinds import OWN_FOLDERS
from isthmus.federation.identities import course_secret, neighbor_keys, node_keys
from isthmus.federation.messages import NOT_AGREED, Finish, Proposal, Receipt, Terms, Verdict
from isthmus.federation.policy import Policy
from isthmus.learn.client import ForeignEdges, GraphClient
from isthmus.monitor.folder import ID_FILE, RunFolder, save_model_file
from isthmus.monitor.journal import replace_file
from isthmus.runtime.envelope import BLANK, Answer
from isthmus.runtime.silo import MemoryStore, Silo
from isthmus.simulation import build_model, known_parameters, output_dim, personal_start, require_kind, torch_threads

MAX_COURSE_CHARACTERS = 2**16
_COURSE_ID = re.compile(r"[0-9a-f]{8,64}")


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
    ) -> None:
        self.name = name
        self.data = data
        self.state = state
        self.policy = policy or Policy()
        self.say = say
        self.id_secret = id_secret
        self.refused: str = ""  # why the federation does not want this silo, if so
        self._courses: dict[str, tuple[Course, Silo]] = {}

    def handle(self, kind: str, data: bytes) -> bytes:
        """Answer a message of the server's, whatever it is."""
        if len(data) > self.policy.max_message_bytes:
            problem = f"message of {len(data)} bytes is above this silo's limit of {self.policy.max_message_bytes}"
            return self._failure(kind, problem)
        try:
            if kind == "exchange":
                return self._exchange(data)
            if kind == "propose":
                return encode(self._propose(decode(data, Proposal)))
            if kind == "verdict":
                return encode(self._verdict(decode(data, Verdict)))
            if kind == "finish":
                return encode(self._finish(decode(data, Finish)))
            raise BadMessage(f"there is no message of the kind {kind[:40]!r}")
        except BadMessage as error:
            return self._failure(kind, str(error))
        except Exception as error:  # whatever a message brings about must not end the silo's process
            return self._failure(kind, f"{type(error).__name__}: {error}")

    def _failure(self, kind: str, problem: str) -> bytes:
        self.say(f"refused a message of the kind {kind[:40]!r}: {problem}")
        if kind == "exchange":
            return encode(Answer(pack(b""), Failure(self.name, "refused", problem), BLANK))
        answer: Record = self._terms(problem) if kind == "propose" else Receipt(problem)
        return encode(answer)

    # ---- before the course

    def _propose(self, proposal: Proposal) -> Terms:
        try:
            if not _COURSE_ID.fullmatch(proposal.course_id):
                raise BadInput(f"{proposal.course_id[:40]!r} cannot name a course")
            if proposal.version != __version__:
                raise BadInput(
                    f"the server runs isthmus {proposal.version}, this silo {__version__}; install the same version"
                )
            course = read_course(proposal.course)
            refusal = self.policy.refusal(course, proposal.sites)
            if refusal:
                raise BadInput(refusal)
            folder = self._read(course)
            terms = self._fitting(course, folder.data)
            self._courses = {proposal.course_id: (course, self._silo(proposal.course_id, course, folder))}
        except IsthmusError as error:
            self.say(f"stays away from a course: {error}")
            return self._terms(str(error))
        self.say(f"takes part in a course of {len(proposal.sites)} sites: {type(course.algorithm).__name__}")
        return terms

    def _terms(self, refusal: str) -> Terms:
        return Terms(refusal, __version__, 0, 0, (), "")

    def _read(self, course: Course) -> OwnData[Any]:
        dataset = course.dataset
        if not isinstance(dataset, OwnFolder):
            raise BadInput(
                f"dataset.name is {name_of(type(dataset))!r}; between sites every silo brings its own folder: "
                f"use dataset.name={' or '.join(reversed(OWN_FOLDERS))}"
            )
        folder = replace(dataset, path=str(self.data)).read()
        if any(bool(mask.any()) for mask in folder.data.masks.values()):
            return folder  # the silo's own split stands
        if course.algorithm.learns_without_labels and not len(labelled_items(folder.data)):
            return replace(folder, data=without_examples(folder.data))
        rng = numpy_generator(course.seed, "masks", self.name)
        return replace(folder, data=course.masks.apply(folder.data, rng))

    def _fitting(self, course: Course, data: Any) -> Terms:
        """Return the terms for this silo's data; raises BadInput where task or model are made for something else."""
        task = course.task
        require_kind(course, data)
        into, out = task.input_dim(data), output_dim(course, data, self.name)
        if task.count(data, "train"):  # a silo that has nothing to train on only measures
            task.require_model(build_model(course, into, out, self.name, allow_import=False), data)
        return Terms("", __version__, into, out, task.output_names(data), task.holds(data))

    def _silo(self, course_id: str, course: Course, folder: OwnData[Any]) -> Silo:
        data, keys = folder.data, self._node_keys(course_id, folder.node_ids)
        foreign = self._foreign(course_id, folder)
        into, out = course.task.input_dim(data), output_dim(course, data, self.name)
        # Settings come with the course, from elsewhere: they may name installed parts only, as the course itself.
        known = known_parameters(course, allow_import=False)
        batching = own_batching(course, self.name, allow_import=False)
        algorithm = own_algorithm(course, self.name, allow_import=False)

        def client() -> GraphClient:
            model = build_model(course, into, out, self.name, allow_import=False)
            own = personal_start(course, model, known)
            made = GraphClient(self.name, data, course.task, model, batching, own)
            made.node_keys, made.foreign = keys, foreign
            made.algorithm = algorithm
            return made

        store = MemoryStore(self.state / "memories" / course_id)
        return Silo(course_id, course.algorithm, client, store, self.policy.max_message_bytes)

    def _node_keys(self, course_id: str, ids: tuple[str, ...] | None) -> Tensor | None:
        if self.id_secret is None or ids is None:
            return None
        try:
            return node_keys(ids, course_secret(self.id_secret, course_id))
        except BadInput as error:  # it names ids, and a refusal goes to the server
            self.say(str(error))
            raise BadInput("two of its nodes have the same key; the silo itself has been told which") from None

    def _foreign(self, course_id: str, folder: OwnData[Any]) -> ForeignEdges | None:
        """Return the edges to nodes of other silos, by keys; without the secret nobody can be told of them."""
        listed = folder.foreign if isinstance(folder, GraphFolder) else None
        if self.id_secret is None or listed is None:
            return None
        return ForeignEdges(
            listed.node, neighbor_keys(listed.ids, course_secret(self.id_secret, course_id)), listed.weight
        )

    def _verdict(self, verdict: Verdict) -> Receipt:
        if verdict.refusal:
            self._courses.pop(verdict.course_id, None)
            self.refused = verdict.refusal
            self.say(f"was refused: {verdict.refusal}")
        return Receipt("")

    # ---- during and after the course

    def _exchange(self, data: bytes) -> bytes:
        if not self._courses:
            return NOT_AGREED
        course, silo = next(iter(self._courses.values()))
        # The last bits of a result depend on the number of threads; more than there are cores help nobody.
        with torch_threads(min(course.threads, os.cpu_count() or 1)):
            return silo.answer(data)

    def _finish(self, finish: Finish) -> Receipt:
        """Keep the model that this silo would use: the global one, or its own where the method has personal parts."""
        found: tuple[Course, Silo] | None = self._courses.get(finish.course_id)
        if found is None:
            return Receipt("this silo has not agreed to that course")
        course, silo = found
        memory = course.algorithm.best_memory(silo.store.load(finish.memory))
        params = course.algorithm.client_params(finish.params, memory)
        if params:
            params = silo.client.complete(params)
            data = self._read(course).data
            facts = {
                "input_dim": str(course.task.input_dim(data)),
                "output_dim": str(output_dim(course, data, self.name)),
                "class_names": json.dumps(list(course.task.output_names(data))),
                "client": self.name,
            }
            path = self.state / "models" / f"{finish.course_id}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_model_file(path, params, facts)
            self.say(f"the course is over; this silo's model: {path}")
            parts = course.algorithm.client_parts(memory)
            run = self._keep_run(finish.course_id, course, params, parts, facts)
            self.say(f"to use it: isthmus predict {run} --client {self.name} --graph FOLDER")
        return Receipt("")

    def _keep_run(
        self, course_id: str, course: Course, params: Params, parts: Params, facts: Mapping[str, str]
    ) -> Path:
        """Write what `isthmus predict` needs: a run folder with this silo's model, and what its method adds to it."""
        folder = RunFolder(self.state / "runs" / course_id)
        folder.path.mkdir(parents=True, exist_ok=True)
        # A course that came from elsewhere may name installed parts only, also when it is read again.
        replace_file(folder.path / ID_FILE, course_id.encode())
        replace_file(folder.course, course_to_yaml(course).encode())
        folder.save_models({}, {self.name: params}, lambda client: facts)
        folder.save_parts({self.name: parts})
        return folder.path


def read_course(text: str) -> Course:
    """Return the course in a YAML text from elsewhere: installed parts only, never an import path."""
    if len(text) > MAX_COURSE_CHARACTERS:
        raise BadInput(f"the course has {len(text)} characters, the limit is {MAX_COURSE_CHARACTERS}")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise BadInput("the course has YAML aliases, which can grow without bound")
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(f"the course is not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(raw, dict):
        raise BadInput(f"the course is {type(raw).__name__}, expected keys and values")
    return load_course(raw, allow_import=False)
