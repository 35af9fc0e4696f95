"""What methods ask of a client before they work with it; each says what it does with that."""

from __future__ import annotations

from torch import Tensor

from isthmus.core.errors import BadInput
from isthmus.learn.batching import FullBatch
from isthmus.learn.graph_client import GraphClient
from isthmus.learn.tasks.node_classification import NodeClassification


def require_classes_of_nodes(client: GraphClient, does: str) -> None:
    """Refuse clients that do not classify nodes."""
    if type(client.task) is not NodeClassification:
        raise BadInput(f"{does}; the task is {type(client.task).__name__}: use task.name=node_classification")


def require_whole_graph(client: GraphClient, does: str, further: str = "") -> None:
    """Refuse clients whose batches are not all they have; `further` is what to set beside full batches."""
    if not isinstance(client.batching, FullBatch):
        raise BadInput(f"{does}; batching is {client.batching!r}: use full batches (batching.name=full){further}")


def require_keys(client: GraphClient, cannot: str) -> Tensor:
    """Return the names under which others know the client's nodes; refuse a client that has none."""
    if client.node_keys is None:
        raise BadInput(
            f"{client.id} cannot {cannot}: start it with isthmus join --id-secret-file FILE, the same file at all "
            "silos, or let ids go round all of them with dataset.match_ids=private in the course"
        )
    return client.node_keys
