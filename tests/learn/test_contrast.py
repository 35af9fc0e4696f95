"""Equation 8 of FGSSL, held against double loops over nodes."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from isthmus.learn import contrast
from isthmus.learn.contrast import node_contrast

LABELS = {
    "mixed": [0, 1, 2, 0, 0, 1, 0, 3, 1],  # classes 2 and 3 have one node each
    "two nodes": [0, 1],
    "all different": [3, 1, 0, 2],
    "gaps in the classes": [5, 5, 9, 0, 9],
    "one against many": [1, 0, 0, 0, 0],
}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    length = a.square().sum().sqrt() * b.square().sum().sqrt()
    return (a * b).sum() / length if float(length.detach()) > 0 else (a * b).sum() * 0.0


def looped(h: Tensor, g: Tensor, labels: list[int], tau: float, sample: list[int] | None = None) -> Tensor:
    """The mean of equation 8, node by node; with a sample, of its estimate from the sampled nodes and the own view."""
    number = len(h)
    total = h.new_zeros(())
    for i in range(number):
        chosen = range(number) if sample is None else sample
        positives = [p for p in chosen if labels[p] == labels[i] and p != i] + [i]
        negatives = [k for k in chosen if labels[k] != labels[i]]
        every = sum(label != labels[i] for label in labels)
        if not negatives:
            continue
        against = sum((torch.exp(cosine(h[i], g[k]) / tau) for k in negatives), h.new_zeros(()))
        against = against * every / len(negatives)
        for p in positives:
            e = torch.exp(cosine(h[i], g[p]) / tau)
            total = total - torch.log(e / (e + against)) / len(positives)
    return total / number


def views(number: int, width: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    h = torch.randn(number, width, generator=draw, dtype=torch.float64)
    return h.requires_grad_(), torch.randn(number, width, generator=draw, dtype=torch.float64)


def gradient(loss: Callable[..., Tensor], h: Tensor, *others: Any, **options: Any) -> Tensor:
    (found,) = torch.autograd.grad(loss(h, *others, **options), h)
    return found


# ---- by hand


def test_two_nodes_by_hand() -> None:
    """Cosines: node 0 with its own view 0.6 and with the other's 0.8, node 1 0 and 1; tau is 1/2."""
    h = torch.tensor([[2.0, 0.0], [0.6, 0.8]])
    g = torch.tensor([[3.0, 4.0], [4.0, -3.0]])
    e = {cos: math.exp(cos / 0.5) for cos in (0.6, 0.8, 0.0, 1.0)}
    first, second = math.log((e[0.6] + e[0.8]) / e[0.6]), math.log((e[0.0] + e[1.0]) / e[0.0])
    found = node_contrast(h, g, torch.tensor([0, 1]), 0.5)
    assert float(found) == pytest.approx((first + second) / 2, rel=1e-6)


def test_three_nodes_by_hand() -> None:
    """Nodes 0 and 1 are of one class: their losses are means over two positives, with node 2 as the negative."""
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    g = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, -0.6]])
    one = (math.log(1 + math.exp(0.8 - 1.0)) + math.log(1 + math.exp(0.8 - 0.6))) / 2
    two = (math.log(1 + math.exp(-0.6 - 0.0)) + math.log(1 + math.exp(-0.6 - 0.8))) / 2
    three = math.log(1 + math.exp(1.0 - 0.8) + math.exp(0.6 - 0.8))
    found = node_contrast(h, g, torch.tensor([4, 4, 1]), 1.0)
    assert float(found) == pytest.approx((one + two + three) / 3, rel=1e-6)


def test_the_temperature_is_inside_the_exponential() -> None:
    """Outside, as equation 7 prints it, it would cancel and change nothing."""
    h, g = views(9)
    labels = torch.tensor(LABELS["mixed"])
    values = [float(node_contrast(h.detach(), g, labels, tau)) for tau in (0.1, 0.5, 2.0)]
    assert min(abs(a - b) for a, b in pairwise(values)) > 0.1


def test_a_positive_does_not_stand_in_the_denominator_of_another() -> None:
    """Nodes 0 and 1 are of one class and as near as can be: with both below the fraction the loss would be log 2."""
    h = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    found = node_contrast(h, h, torch.tensor([0, 0, 1]), 0.05)
    assert float(found) == pytest.approx(0.0, abs=1e-6)


def test_the_own_view_is_a_positive() -> None:
    """Of a class with one node: without it |P_i| would be 0."""
    h = views(4)[0].detach()
    labels = torch.tensor(LABELS["all different"])
    near, far = (float(node_contrast(h, g, labels, 0.1)) for g in (h, -h))
    assert near < 1.0 < 5.0 < far


# ---- against loops


@pytest.mark.meet(1)
@pytest.mark.parametrize("tau", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("name", LABELS)
def test_the_loss_and_its_gradient_are_those_of_the_loops(name: str, tau: float) -> None:
    labels = LABELS[name]
    h, g = views(len(labels))
    found = node_contrast(h, g, torch.tensor(labels), tau)
    torch.testing.assert_close(found, looped(h, g, labels, tau), rtol=1e-9, atol=1e-12)
    assert found.ndim == 0 and float(found.detach()) > 0
    ours = gradient(node_contrast, h, g, torch.tensor(labels), tau)
    torch.testing.assert_close(ours, gradient(looped, h, g, labels, tau), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("sample", [None, [7, 0, 3, 8], [1]], ids=["all", "some", "one"])
def test_the_gradient_is_that_of_finite_differences(sample: list[int] | None) -> None:
    labels = torch.tensor(LABELS["mixed"])
    h, g = views(len(labels))
    drawn = None if sample is None else torch.tensor(sample)
    assert torch.autograd.gradcheck(lambda x: node_contrast(x, g, labels, 0.3, sample=drawn), (h,))


def test_the_gradient_counts_what_comes_after() -> None:
    h, g = views(9)
    labels = torch.tensor(LABELS["mixed"])
    once = gradient(node_contrast, h, g, labels, 0.3)
    thrice = gradient(lambda x: 3.0 * node_contrast(x, g, labels, 0.3) + 1.0, h)
    torch.testing.assert_close(thrice, 3.0 * once)


def test_no_gradient_flows_into_the_other_view() -> None:
    h, g = views(9)
    g.requires_grad_()
    found = node_contrast(h, g, torch.tensor(LABELS["mixed"]), 0.3)
    assert torch.autograd.grad(found, [g], allow_unused=True) == (None,)


def test_lengths_play_no_part() -> None:
    h, g = views(9)
    labels = torch.tensor(LABELS["mixed"])
    lengths = torch.linspace(0.01, 50.0, 9, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(node_contrast(lengths * h, lengths.flip(0) * g, labels, 0.2),
                               node_contrast(h, g, labels, 0.2))  # fmt: skip


def test_the_views_are_not_changed() -> None:
    h, g = views(9)
    before = h.detach().clone(), g.clone()
    gradient(node_contrast, h, g, torch.tensor(LABELS["mixed"]), 0.3, sample=torch.tensor([1, 4]))
    assert torch.equal(h, before[0]) and torch.equal(g, before[1])


def test_a_gradient_of_the_gradient_is_right_or_refused() -> None:
    h, g = views(9)
    labels = LABELS["mixed"]

    def bent(loss: Callable[..., Tensor], labels: Any) -> Tensor:
        (first,) = torch.autograd.grad(loss(h, g, labels, 0.5), h, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), h)
        return second

    try:
        ours = bent(node_contrast, torch.tensor(labels))
    except RuntimeError:
        return
    torch.testing.assert_close(ours, bent(looped, labels))


# ---- blocks


@pytest.mark.parametrize("block_bytes", [1, 100, 8 * 9 * 2, 8 * 9 * 4, 8 * 9 * 9, 2**20])
@pytest.mark.parametrize("sample", [None, [7, 0, 3, 8]], ids=["all", "some"])
def test_blocks_of_any_size_give_the_same(sample: list[int] | None, block_bytes: int) -> None:
    labels = torch.tensor(LABELS["mixed"])
    h, g = views(9)
    drawn = None if sample is None else torch.tensor(sample)
    options = {"sample": drawn, "block_bytes": block_bytes}
    torch.testing.assert_close(
        node_contrast(h, g, labels, 0.3, **options), looped(h, g, LABELS["mixed"], 0.3, sample)  # type: ignore[arg-type]
    )  # fmt: skip
    torch.testing.assert_close(
        gradient(node_contrast, h, g, labels, 0.3, **options), gradient(looped, h, g, LABELS["mixed"], 0.3, sample)
    )


def largest_matrix(monkeypatch: pytest.MonkeyPatch, number: int, **options: Any) -> int:
    """Return the bytes of the largest matrix of similarities that is worked on."""
    seen: list[int] = []
    inner = contrast._pull_and_push

    def watched(similar: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        seen.append(similar.numel() * similar.element_size())
        return inner(similar, *others)

    with monkeypatch.context() as patch:
        patch.setattr(contrast, "_pull_and_push", watched)
        h = torch.randn(number, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        node_contrast(h, h.detach(), torch.arange(number) % 3, 0.2, **options)
    assert sum(seen) == 4 * number * (number if options.get("sample") is None else len(options["sample"]))
    return max(seen)


def test_similarities_never_take_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (200, 400, 800):
        assert largest_matrix(monkeypatch, number, block_bytes=2**14) <= 2**14
    drawn = torch.arange(40)
    assert largest_matrix(monkeypatch, 800, block_bytes=2**14, sample=drawn) <= 2**14
    assert contrast.BLOCK_BYTES <= 64 * 2**20


MEMORY = """
import resource, torch
torch.set_num_threads(1)
from isthmus.learn.contrast import node_contrast
draw = torch.Generator().manual_seed(0)
def run(number, **options):
    h = torch.randn(number, 16, generator=draw).requires_grad_()
    labels = torch.arange(number) % 7
    loss = node_contrast(h, torch.randn(number, 16, generator=draw), labels, 0.1, **options)
    torch.autograd.grad(loss, h)
run(50, sample=torch.arange(20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run({number}, {options})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow  # the test above counts the same matrices
@pytest.mark.parametrize(
    ("number", "options"),
    [
        (20_000, "sample=torch.randperm(20_000, generator=draw)[:1000]"),
        (6000, "block_bytes=2**21"),
    ],
    ids=["20,000 nodes with 1,000 each", "6,000 nodes, all"],
)
def test_memory_does_not_grow_with_the_square_of_the_nodes(number: int, options: str) -> None:
    """All pairs would take 1,600 and 144 MB, several times over."""
    script = MEMORY.replace("{number}", str(number)).replace("{options}", options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) < (300 if number == 20_000 else 60)


# ---- odd cases


@pytest.mark.parametrize("sample", [None, [0, 2], [1]], ids=["all", "some", "one"])
def test_one_class_has_nothing_to_tell_apart(sample: list[int] | None) -> None:
    h, g = views(4)
    drawn = None if sample is None else torch.tensor(sample)
    for label in (0, 5):
        labels = torch.full((4,), label)
        assert float(node_contrast(h, g, labels, 0.1, sample=drawn).detach()) == 0.0
        assert not gradient(node_contrast, h, g, labels, 0.1, sample=drawn).any()


def test_one_node_contributes_nothing() -> None:
    h, g = views(1)
    assert float(node_contrast(h, g, torch.tensor([2]), 0.1).detach()) == 0.0
    assert not gradient(node_contrast, h, g, torch.tensor([2]), 0.1).any()


def test_no_node_gives_zero_with_a_gradient_of_no_rows() -> None:
    h, g = views(0)
    none = torch.empty(0, dtype=torch.int64)
    assert float(node_contrast(h, g, none, 0.1).detach()) == 0.0
    assert gradient(node_contrast, h, g, none, 0.1).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.01, 0.001, 100.0, 1e4])
def test_extreme_temperatures_stay_finite_and_right(tau: float, dtype: torch.dtype) -> None:
    h, g = views(9)
    labels = torch.tensor(LABELS["mixed"])
    mine = h.detach().to(dtype).requires_grad_()
    for drawn in (None, torch.tensor([7, 0, 3, 8])):
        found = node_contrast(mine, g.to(dtype), labels, tau, sample=drawn)
        slope = gradient(node_contrast, mine, g.to(dtype), labels, tau, sample=drawn)
        assert bool(torch.isfinite(found)) and bool(torch.isfinite(slope).all())
        if tau >= 0.01:  # below, the loops overflow
            chosen = None if drawn is None else drawn.tolist()
            wanted = looped(h, g, LABELS["mixed"], tau, chosen)
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


def test_large_gaps_keep_their_size() -> None:
    """Node 0 lies at the other's view and opposite its own: log(1 + exp(2 / tau)), where the exponential overflows."""
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    g = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    found = node_contrast(h, g, torch.tensor([0, 1]), 0.001)
    assert float(found) == pytest.approx((2000.0 + math.log(2.0)) / 2, rel=1e-6)


def test_a_zero_vector_is_as_near_to_all() -> None:
    """Its cosines are 0: log(1 + number of negatives). Other nodes see it at 0 too."""
    h = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    g = torch.tensor([[1.0, 1.0], [0.0, 0.0], [2.0, 0.5]], dtype=torch.float64)
    labels = [0, 0, 1]
    found = node_contrast(h, g, torch.tensor(labels), 0.5)
    torch.testing.assert_close(found, looped(h, g, labels, 0.5))
    assert bool(torch.isfinite(found))


@pytest.mark.parametrize("sample", [None, [1, 2]], ids=["all", "some"])
def test_the_gradient_of_a_zero_vector_is_no_larger_than_others(sample: list[int] | None) -> None:
    h = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0]], requires_grad=True)
    g = torch.tensor([[1.0, 1.0], [-1.0, 0.5], [2.0, 0.5]])
    drawn = None if sample is None else torch.tensor(sample)
    slope = gradient(node_contrast, h, g, torch.tensor([0, 0, 1]), 0.5, sample=drawn)
    assert float(slope.abs().max()) < 100.0


# ---- a sample


@pytest.mark.parametrize("name", LABELS)
def test_a_sample_of_all_nodes_in_any_order_is_no_sample(name: str) -> None:
    labels = torch.tensor(LABELS[name])
    h, g = views(len(labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    whole, drawn = (node_contrast(h, g, labels, 0.3, sample=s) for s in (None, order))
    torch.testing.assert_close(drawn, whole)
    torch.testing.assert_close(
        gradient(node_contrast, h, g, labels, 0.3, sample=order), gradient(node_contrast, h, g, labels, 0.3)
    )


@pytest.mark.parametrize("sample", [[7, 0, 3, 8], [2], [4, 6], [1, 5, 8], [0, 1, 2, 3, 4, 5, 6, 7]], ids=str)
def test_a_sample_is_what_the_loops_say(sample: list[int]) -> None:
    """Some anchors have no sampled negative, some no sampled positive but their own, some are in it themselves."""
    labels = torch.tensor(LABELS["mixed"])
    h, g = views(9)
    drawn = torch.tensor(sample)
    found = node_contrast(h, g, labels, 0.3, sample=drawn)
    torch.testing.assert_close(found, looped(h, g, LABELS["mixed"], 0.3, sample))
    torch.testing.assert_close(
        gradient(node_contrast, h, g, labels, 0.3, sample=drawn), gradient(looped, h, g, LABELS["mixed"], 0.3, sample)
    )


def test_the_sum_over_sampled_negatives_is_scaled_without_bias() -> None:
    """Node 0 is alone in its class; the others have no sampled negative, so that the loss is node 0's sixth."""
    h, g = (each.detach() for each in views(6))
    labels = torch.tensor([0, 1, 1, 1, 1, 1])
    e = [math.exp(float(cosine(h[0], g[k])) / 0.7) for k in range(6)]
    for size in (1, 2, 4):
        samples = [torch.tensor(chosen) for chosen in combinations(range(1, 6), size)]
        ratios = [math.exp(6 * float(node_contrast(h, g, labels, 0.7, sample=sample))) - 1 for sample in samples]
        assert sum(ratios) / len(ratios) == pytest.approx(sum(e[1:]) / e[0], rel=1e-6)


def test_the_own_view_counts_once_whether_it_is_in_the_sample_or_not() -> None:
    """Node 0 is alone in its class, so its loss is that of its own view, sampled or not."""
    h = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    g = torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    first = math.log(1 + 2 * math.exp(-0.6))  # two negatives at cosine 0
    rest = math.log(1 + math.exp(0.8 - 1.0))  # one negative, node 0
    without = float(node_contrast(h, g, labels, 1.0, sample=torch.tensor([1])))
    assert without == pytest.approx(first / 3, rel=1e-5)  # nodes 1 and 2 have no sampled negative
    inside = float(node_contrast(h, g, labels, 1.0, sample=torch.tensor([0, 1])))
    assert inside == pytest.approx((first + 2 * rest) / 3, rel=1e-5)
