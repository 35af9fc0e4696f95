"""What the server knows of the silos' models: what they need not have in common, and that what they share fits."""

from __future__ import annotations

from isthmus.config.course import Course
from isthmus.config.load import clients_with_own_models
from isthmus.core.errors import BadInput
from isthmus.core.federation import InitialModel
from isthmus.models.sharing import (
    EVERYTHING,
    names_by_classes,
    names_by_features,
    require_same_shared,
    shared_names,
)
from isthmus.runs.simulation import build_model, initial_model, known_parameters
from isthmus.sites.courses.agreement import Agreement, Freedom
from isthmus.sites.courses.messages import Terms


class SiteModels:
    """The models of a course between sites: the course's own, and those that settings of single sites make of it."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.own = frozenset(clients_with_own_models(course))
        self.known = known_parameters(course)
        self.shared: InitialModel | None = None
        self.by_position = bool(getattr(course.dataset, "by_position", False))

    def freedom(self) -> Freedom:
        """Return what silos may have of their own: that on which nothing shared depends."""
        if self.course.sharing == EVERYTHING:
            return Freedom(models=self.own, by_position=self.by_position)
        model = self.course.model
        shared = shared_names(self.course.sharing, build_model(self.course, 1, 1).state_dict(), self.known)
        # Where outputs are no classes, all silos have the same number of them.
        classes = self.course.task.outputs_are_classes and not shared.intersection(names_by_classes(model, 1))
        features = not shared.intersection(names_by_features(model, 1))
        return Freedom(classes, features, self.own, self.by_position)

    def initial(self, agreement: Agreement) -> InitialModel:
        """Return what the course starts from; raises BadInput when a silo's own model shares something else."""
        built = build_model(self.course, agreement.input_dim, agreement.output_dim)
        self.shared = initial_model(self.course, built, self.known)
        for site in self.own.intersection(agreement.holds):
            self._check(site, agreement.inputs[site], agreement.own[site][0])
        return self.shared

    def problem(self, site: str, terms: Terms) -> str:
        """Return why the model of a silo that comes late does not fit, or nothing."""
        try:
            if site in self.own:
                self._check(site, terms.input_dim, terms.output_dim)
        except BadInput as error:
            return str(error)
        return ""

    def _check(self, site: str, input_dim: int, output_dim: int) -> None:
        assert self.shared is not None
        slots = build_model(self.course, input_dim, output_dim, site).state_dict()
        shared = shared_names(self.course.sharing, slots, self.known)
        theirs = {name: slot for name, slot in slots.items() if name in shared}
        require_same_shared(self.course.sharing, self.shared.params, site, theirs)
