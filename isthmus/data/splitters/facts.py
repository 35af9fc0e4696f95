"""What splitters may go by: a value for each item, from its attributes, its features or its place in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from isthmus.core.errors import BadInput, nearest
from isthmus.data.dividing import Holding
from isthmus.data.features import scipy_rows
from isthmus.data.folders.tables.columns import PREFIX
from isthmus.data.graph import Graph, undirected_pairs
from isthmus.data.graph_set import GraphSet
from isthmus.data.link_graph import LinkGraph
from isthmus.data.on_demand import sparse

Values = npt.NDArray[Any]

# Above so many numbers, sparse features are not made dense.
DENSE_LIMIT = 20_000_000
# So many walks of two edges are looked at in one go.
MAX_WALKS = 5_000_000


def attributes_of(data: Holding) -> dict[str, Tensor]:
    """Return the attributes of the items; a link also has those of its ends, as `head.<name>` and `tail.<name>`.

    Which nodes its ends are is in `head.id` and `tail.id`.
    """
    found = dict(data.attributes)
    if isinstance(data, LinkGraph):
        of_nodes = {"id": data.node_ids, **data.node_attributes}
        for row, end in enumerate(("head", "tail")):
            found |= {f"{end}.{key}": value[data.links[row]] for key, value in of_nodes.items()}
    return found


def attribute(data: Holding, name: str, where: str) -> Values:
    """Return an attribute of the items, (items,); `where` says in errors who asked."""
    known = attributes_of(data)
    if name not in known:
        raise BadInput(f"{where} is {name!r}, {_absent(data, name, nearest(name, known))}")
    if known[name].dim() != 1:
        raise BadInput(f"{where} is {name!r}, of shape {tuple(known[name].shape)}; one value for each item is needed")
    return known[name].numpy()


def _absent(data: Holding, name: str, choices: str) -> str:
    """Return in words what a name is that no attribute has, and what would do; it may be a column of features."""
    if not any(column == name or column.startswith((f"{name}=", f"{name}:")) for column in data.feature_names):
        return f"which no {data.item} of {data.name!r} has; {choices}"
    remedy = f"To split an own folder by it, name the column {PREFIX + name!r}, or import it with --attribute {name}"
    return f"which is a feature of {data.name!r}; {choices} {remedy}"


def only_attribute(data: Holding) -> str:
    """Return the name of the one attribute that the items have."""
    names = sorted(data.attributes)
    if len(names) == 1:
        return names[0]
    of_ends = sorted(attributes_of(data))
    if names:
        found = f"several; choose one of: {', '.join(names)}"
    elif of_ends:
        found = f"none of their own; choose one of their ends': {', '.join(of_ends)}"
    else:
        found = "none to go by; use another splitter"
    raise BadInput(f"splitter.attribute is not set, and the {data.item}s of {data.name!r} have {found}")


def value_names(data: Holding, name: str, values: Values) -> list[str]:
    """Return how to call the given values of an attribute: names of categories, where there are any."""
    names = data.attribute_names.get(name, ())
    if isinstance(data, LinkGraph) and name not in data.attributes:
        names = data.node_attribute_names.get(name.partition(".")[2], ())
    known = len(names) > 0 and np.issubdtype(values.dtype, np.integer)
    return [names[value] if known and 0 <= value < len(names) else str(value) for value in values.tolist()]


def item_values(data: Holding, by: str, where: str) -> Values:
    """Return what items are sorted by, (items,): an attribute, a measure of MEASURES, or `feature.<column>`."""
    measures = MEASURES[data.item]
    known = attributes_of(data)
    if by in known:
        return attribute(data, by, where)
    if by in measures:
        return measures[by](data)
    stem, _, column = by.partition(".")
    if stem == "feature" and column.isdecimal():
        return _feature_column(data, int(column), where)
    if by in ALL_MEASURES:
        raise BadInput(f"{where} is {by!r}, which {data.item}s do not have; {nearest(by, [*known, *measures])}")
    choices = [*known, *measures, "feature.<column>"]
    raise BadInput(f"{where} is {by!r}, which no {data.item} of {data.name!r} has; {nearest(by, choices)}")


def item_features(data: Holding) -> Any:
    """Return the features of each item, (items, features), a numpy or a scipy CSR matrix.

    Those of a node; the mean over both ends of a link; the mean over all nodes of a graph.
    """
    x: Any = scipy_rows(data.x) if data.x.layout == torch.sparse_csr else data.x.numpy()
    if isinstance(data, LinkGraph):
        return _mean_matrix(data.links.t().reshape(-1).numpy(), np.full(data.num_items, 2), data.num_nodes) @ x
    if isinstance(data, GraphSet):
        return _mean_matrix(np.arange(data.num_nodes), data.sizes.numpy(), data.num_nodes) @ x
    return x


def principal_directions(data: Holding, count: int) -> npt.NDArray[np.float64]:
    """Return the items' coordinates along the first principal directions of their features, (items, at most count)."""
    from sklearn.decomposition import PCA

    features = item_features(data)
    small = features.shape[0] * features.shape[1] <= DENSE_LIMIT
    if sparse.issparse(features) and small:
        features = features.toarray()
    most = min(features.shape) - (1 if sparse.issparse(features) else 0)  # the sparse solver cannot find all
    count = min(count, most)
    if features.shape[0] < 2 or count == 0:
        return np.zeros((data.num_items, 1))
    solver = "arpack" if sparse.issparse(features) else "auto"
    directions = PCA(n_components=count, svd_solver=solver, random_state=0)
    with np.errstate(invalid="ignore"):  # features that do not differ at all
        return np.asarray(directions.fit_transform(features), dtype=np.float64)


def _mean_matrix(members: Values, sizes: Values, num_nodes: int) -> Any:
    """Return the matrix that averages rows of nodes, (items, nodes); `members` are listed item after item."""
    start = np.concatenate([[0], np.cumsum(sizes)])
    shares = np.repeat(1.0 / np.maximum(sizes, 1), sizes).astype(np.float32)
    return sparse.csr_matrix((shares, members, start), shape=(len(sizes), num_nodes))


def _feature_column(data: Holding, column: int, where: str) -> Values:
    features = item_features(data)
    if column >= features.shape[1]:
        raise BadInput(f"{where} is 'feature.{column}', but {data.name!r} has {features.shape[1]} features, from 0 on")
    chosen = features[:, [column]]
    return np.asarray(chosen.toarray() if sparse.issparse(chosen) else chosen)[:, 0]


def _node_density(graph: Graph) -> Values:
    """Return the share of the pairs of a node's neighbours that are joined; 0 where there are none."""
    pairs = undirected_pairs(graph.edge_index, graph.num_nodes)[0].numpy()
    degree = np.bincount(pairs.reshape(-1), minlength=graph.num_nodes)
    # Each edge leads to its better connected end, so that few leave any node, a hub neither, and walks of two are few.
    place = np.empty(graph.num_nodes, dtype=np.int64)
    place[np.argsort(degree, kind="stable")] = np.arange(graph.num_nodes)
    ends = np.sort(place[pairs], axis=0)
    up = sparse.csr_matrix((np.ones(pairs.shape[1]), (ends[0], ends[1])), shape=(graph.num_nodes,) * 2)
    # Of a triangle i -> k -> j, i -> j: i is counted by its walks to j, k and j by the i that leads to both.
    lower = _closed(up, up).sum(axis=1).A1
    upper = _closed(up.T.tocsr(), up)
    triangles = (lower + upper.sum(axis=1).A1 + upper.sum(axis=0).A1)[place]
    return np.asarray(2 * triangles / np.maximum(degree, 1) / np.maximum(degree - 1, 1))


def _closed(left: Any, up: Any) -> Any:
    """Return the entries of left @ up where `up` has an edge, made block by block so that little is held at a time."""
    reach = np.cumsum(left @ np.diff(up.indptr))  # what the rows of the product up to here hold at most
    blocks = []
    start = 0
    while start < up.shape[0]:
        before = reach[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(reach, before + MAX_WALKS, side="right")))
        blocks.append((left[start:end] @ up).multiply(up[start:end]).tocsr())
        start = end
    return sparse.vstack(blocks, format="csr") if blocks else up


def _node_homophily(graph: Graph) -> Values:
    y = graph.y.numpy()
    source, target = graph.edge_index.numpy()
    known = (y[source] >= 0) & (y[target] >= 0)
    same = np.bincount(source[known], weights=y[source[known]] == y[target[known]], minlength=graph.num_nodes)
    total = np.bincount(source[known], minlength=graph.num_nodes)
    return np.where(total > 0, same / np.maximum(total, 1), np.nan)


def _link_degree(data: LinkGraph) -> Values:
    degree = np.bincount(data.links[:, data.is_link].reshape(-1).numpy(), minlength=data.num_nodes)
    return np.asarray(degree[data.links.numpy()].sum(axis=0))


def _edge_share(data: GraphSet, possible: Callable[[Values], Values]) -> Values:
    return np.asarray(data.edge_start.diff().numpy() / np.maximum(possible(data.sizes.numpy()), 1))


# degree:    neighbours of a node; of both ends of a link; of a graph's nodes on average
# density:   share of the possible edges that are there, among a node's neighbours or in a graph
# homophily: share of a node's labelled neighbours that have its class; last, where there are none
# principal: along the direction in which the items' features differ most
# size:      nodes of a graph
MEASURES: dict[str, dict[str, Callable[[Any], Values]]] = {
    "node": {
        "degree": lambda graph: np.bincount(graph.edge_index[0].numpy(), minlength=graph.num_nodes),
        "density": _node_density,
        "homophily": _node_homophily,
        "principal": lambda graph: principal_directions(graph, 1)[:, 0],
    },
    "link": {"degree": _link_degree, "principal": lambda data: principal_directions(data, 1)[:, 0]},
    "graph": {
        "degree": lambda data: _edge_share(data, lambda sizes: sizes),
        "density": lambda data: _edge_share(data, lambda sizes: sizes * (sizes - 1)),
        "principal": lambda data: principal_directions(data, 1)[:, 0],
        "size": lambda data: data.sizes.numpy(),
    },
}
ALL_MEASURES = sorted({name for measures in MEASURES.values() for name in measures})
