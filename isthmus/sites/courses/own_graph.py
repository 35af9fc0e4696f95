"""The server's own graph between sites: a folder at the server, read as a silo reads its own."""

from __future__ import annotations

from pathlib import Path

from isthmus.config.course import Course
from isthmus.config.load import own_batching
from isthmus.core.errors import BadInput, IsthmusError
from isthmus.core.guards.guard import SERVER
from isthmus.core.random import Secret
from isthmus.learn.graph_client import GraphClient
from isthmus.runs.server_graph import ServersClient
from isthmus.runs.simulation import build_model, personal_start
from isthmus.sites.courses.hub import SiteTransport
from isthmus.sites.silo.terms import own_dataset, read_own, terms_of


def require_own_graph(course: Course, folder: Path | None) -> None:
    """Raise BadInput where a course goes by a graph of the server's, and the server has none."""
    if course.server_share and folder is None:
        raise BadInput(
            f"server_share is {course.server_share:g}, and this server has no graph of its own: start it with isthmus "
            "serve --graph FOLDER, or leave server_share out"
        )


def own_client(
    course: Course, folder: Path | None, transport: SiteTransport, secret: Secret | None
) -> ServersClient | None:
    """Return a client on the server's own graph, where the course wants one; its data must be such as the silos have.

    It takes part in nothing: no silo learns of it but that there is one, and none of its answers leaves.
    """
    require_own_graph(course, folder)
    if not course.server_share or folder is None:
        return None
    try:
        held = read_own(course, own_dataset(course), folder, SERVER)
        terms = terms_of(course, held, SERVER)
    except IsthmusError as error:
        raise BadInput(f"the server's own graph {folder}: {error}") from None
    problem = transport.unlike(SERVER, terms)
    if problem:
        raise BadInput(f"the server's own graph {folder} is not as those of the silos: {problem}")
    model = build_model(course, terms.input_dim, terms.output_dim, SERVER, allow_import=False)
    own = personal_start(course, model, transport.models.known)
    client = GraphClient(SERVER, held.data, course.task, model, own_batching(course, SERVER, allow_import=False), own)
    client.secret = secret
    return ServersClient(course, client)
