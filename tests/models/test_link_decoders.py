"""Link decoders against their formulas, entry by entry; chosen relations and candidates against the plain scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from isthmus.core.errors import BadInput
from isthmus.core.random import torch_generator
from isthmus.models import GCN, DecoderSpec, GraphInput, LinearDecoder, Model, ModelSpec
from isthmus.models.decoders import (
    Bilinear,
    BilinearDecoder,
    DistMult,
    DistMultDecoder,
    Dot,
    DotDecoder,
    HadamardMLP,
    HadamardMLPDecoder,
    LinkPart,
)

DIM, RELATIONS, PAIRS = 5, 4, 7


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(seed, "toy"))


def moved(part: LinkPart) -> LinkPart:
    """Return a part with every parameter and every running statistic away from its start."""
    with torch.no_grad():
        for number, (name, slot) in enumerate(part.state_dict().items()):
            noise = drawn(*slot.shape, seed=number)
            slot.copy_(noise.abs() + 0.5 if "var" in name else noise)
    return part


SPECS: dict[str, tuple[DecoderSpec, int]] = {
    "dot": (DotDecoder(), 1),
    "distmult": (DistMultDecoder(), RELATIONS),
    "bilinear": (BilinearDecoder(), RELATIONS),
    "mlp": (HadamardMLPDecoder(hidden=6), RELATIONS),
    "mlp of one map": (HadamardMLPDecoder(hidden=6, layers=1), RELATIONS),
    "mlp of three maps, normed": (HadamardMLPDecoder(hidden=6, layers=3, batch_norm=True, dropout=0.4), RELATIONS),
}


def built(name: str) -> tuple[LinkPart, int]:
    spec, out = SPECS[name]
    part = spec.build(DIM, out)
    assert isinstance(part, LinkPart)
    return moved(part), out


def test_dot_is_the_sum_of_products() -> None:
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    expected = [sum(float(a * b) for a, b in zip(h, t, strict=True)) for h, t in zip(head, tail, strict=True)]
    assert torch.allclose(Dot()(head, tail, None), torch.tensor(expected).unsqueeze(1))


def test_distmult_weighs_each_product_by_the_relation() -> None:
    part = moved(DistMult(DIM, RELATIONS))
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    found = part(head, tail, None)
    for p in range(PAIRS):
        for r in range(RELATIONS):
            by_hand = sum(head[p, i] * part.weight[i, r] * tail[p, i] for i in range(DIM))  # type: ignore[index]
            assert torch.allclose(found[p, r], torch.as_tensor(by_hand), atol=1e-5)


def test_bilinear_is_head_times_matrix_times_tail_and_tells_directions_apart() -> None:
    part = moved(Bilinear(DIM, RELATIONS))
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    found = part(head, tail, None)
    for p in range(PAIRS):
        for r in range(RELATIONS):
            assert torch.allclose(found[p, r], head[p] @ part.weight[r] @ tail[p], atol=1e-5)  # type: ignore[index]
    assert not torch.allclose(found, part(tail, head, None))


def test_bilinear_with_diagonal_matrices_is_distmult() -> None:
    plain, diagonal = moved(DistMult(DIM, RELATIONS)), Bilinear(DIM, RELATIONS)
    with torch.no_grad():
        diagonal.weight.copy_(torch.diag_embed(plain.weight.t()))  # type: ignore[operator]
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    assert torch.allclose(plain(head, tail, None), diagonal(head, tail, None), atol=1e-5)


def test_hadamard_mlp_is_a_perceptron_of_the_product() -> None:
    part = moved(HadamardMLP([DIM, 6, RELATIONS], dropout=0.0, batch_norm=False))
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    slots = part.state_dict()
    inner = (head * tail) @ slots["layers.0.weight"] + slots["layers.0.bias"]
    expected = inner.clamp(min=0) @ slots["layers.1.weight"] + slots["layers.1.bias"]
    assert torch.allclose(part(head, tail, None), expected, atol=1e-5)


def test_hadamard_mlp_normalises_as_torch_does() -> None:
    part = moved(HadamardMLP([DIM, 6, RELATIONS], dropout=0.0, batch_norm=True))
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    slots = part.state_dict()
    norm = nn.BatchNorm1d(6).eval()
    norm.load_state_dict({k.removeprefix("norms.0."): v for k, v in slots.items() if "norms" in k}, strict=False)
    inner = norm((head * tail) @ slots["layers.0.weight"] + slots["layers.0.bias"]).relu()
    expected = inner @ slots["layers.1.weight"] + slots["layers.1.bias"]
    assert torch.allclose(part(head, tail, None), expected, atol=1e-5)


def test_hadamard_mlp_drops_in_training_only_and_by_the_generator() -> None:
    part = moved(HadamardMLP([DIM, 64, RELATIONS], dropout=0.5, batch_norm=False))
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    first, second = (part(head, tail, torch_generator(0, "drop")) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.allclose(first, part(head, tail, torch_generator(1, "drop")))
    assert torch.equal(part(head, tail, None), part(head, tail, None))


@pytest.mark.parametrize("name", SPECS)
def test_the_score_of_a_relation_is_its_column(name: str) -> None:
    part, out = built(name)
    head, tail = drawn(PAIRS, DIM), drawn(PAIRS, DIM, seed=1)
    relation = torch.tensor([0, 3, 1, 1, 2, 0, 3]) % out
    expected = part(head, tail, None)[torch.arange(PAIRS), relation]
    assert torch.allclose(part.of(head, tail, relation, None), expected, atol=1e-5)


@pytest.mark.parametrize("given_is_head", [True, False])
@pytest.mark.parametrize("name", SPECS)
def test_scores_against_all_candidates_are_those_of_each_pair(name: str, given_is_head: bool) -> None:
    part, out = built(name)
    given, others = drawn(PAIRS, DIM), drawn(9, DIM, seed=1)
    relation = torch.tensor([0, 3, 1, 1, 2, 0, 3]) % out
    found = part.against(given, others, relation, given_is_head)
    assert found.shape == (PAIRS, 9)
    for i in range(PAIRS):
        for j in range(9):
            pair = (given[[i]], others[[j]]) if given_is_head else (others[[j]], given[[i]])
            assert torch.allclose(found[i, j], part(*pair, None)[0, relation[i]], atol=1e-4)
    assert torch.allclose(found, LinkPart.against(part, given, others, relation, given_is_head), atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_no_pairs_give_no_scores(name: str) -> None:
    part, out = built(name)
    none, kind = torch.empty(0, DIM), torch.empty(0, dtype=torch.int64)
    assert part(none, none, None).shape == (0, out)
    assert part.of(none, none, kind, None).shape == (0,)
    assert part.against(none, drawn(3, DIM), kind, True).shape == (0, 3)


@pytest.mark.parametrize("name", SPECS)
def test_gradients_reach_both_ends_and_every_parameter(name: str) -> None:
    part, out = built(name)
    head, tail = drawn(PAIRS, DIM).requires_grad_(), drawn(PAIRS, DIM, seed=1).requires_grad_()
    relation = torch.arange(PAIRS) % out
    for score in (part(head, tail, None).sum(), part.of(head, tail, relation, None).sum()):
        grads = torch.autograd.grad(score, [head, tail, *part.parameters()], retain_graph=True)
        assert all(bool((grad != 0).any()) for grad in grads)


def test_dot_refuses_several_relations() -> None:
    with pytest.raises(
        BadInput,
        match=r"one score for a pair of nodes, but the task needs 4, .* for links use .*, for nodes and graphs 'mlp'",
    ):
        DotDecoder().build(DIM, 4)


@pytest.mark.parametrize("field", [{"hidden": 0}, {"layers": 0}, {"dropout": 1.0}])
def test_bad_fields_are_refused(field: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        HadamardMLPDecoder(**field)  # type: ignore[arg-type]


def test_a_model_with_a_link_decoder_embeds_nodes_and_scores_none_of_them() -> None:
    model = ModelSpec(GCN(hidden=8, dropout=0.0), decoder=HadamardMLPDecoder()).build(3, RELATIONS)
    graph = GraphInput(x=drawn(6, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
    h = model.embed(graph, None)
    assert h.shape == (6, 8) and isinstance(model.decoder, LinkPart)
    assert model.decoder(h[[0, 1]], h[[2, 3]], None).shape == (2, RELATIONS)
    with pytest.raises(TypeError, match="HadamardMLP scores pairs of nodes"):
        model(graph, None)
    assert isinstance(ModelSpec(GCN(), decoder=LinearDecoder()).build(3, 2), Model)
