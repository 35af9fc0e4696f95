"""Audits as files and words ask for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.algorithms import FedGL
from isthmus.attacks import ATTACKS, Lira, Vocabulary
from isthmus.attacks.audit.reading import read_audit
from isthmus.core.errors import BadInput
from isthmus.privacy import Entropy, NormBound, Quantise, SecureSum

WHOLE = """
title: A first look
base: {rounds: 7, seed: 3, algorithm.local_steps: 1, guards: [norm_bound]}
attacks: [vocabulary, {name: lira, shadows: 8}]
guards: [secure_sum, [quantise, entropy], []]
seeds: 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "audit.yaml"
    path.write_text(text)
    return path


def test_a_file_says_all_of_an_audit(tmp_path: Path) -> None:
    made = read_audit(written(tmp_path, WHOLE))
    assert (made.title, made.course.rounds, made.course.algorithm.local_steps) == ("A first look", 7, 1)  # type: ignore[attr-defined]
    assert made.attacks == (Vocabulary(), Lira(shadows=8)) and made.seeds == (3, 4)
    assert made.lines == ((NormBound(),), (SecureSum(),), (Quantise(), Entropy()), ())


def test_words_change_the_course_take_the_place_of_attacks_and_add_guards(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    made = read_audit(path, ["rounds=9"], attacks=["label_shares"], guards=["delta"], seeds=1)
    assert made.course.rounds == 9 and made.course.algorithm.local_steps == 1  # type: ignore[attr-defined]
    assert [type(attack) for attack in made.attacks] == [ATTACKS["label_shares"]]
    assert len(made.lines) == 5 and made.seeds == (3,)


def test_a_course_file_is_audited_by_all_attacks_for_five_seeds(tmp_path: Path) -> None:
    made = read_audit(written(tmp_path, "{seed: 1, algorithm: fedgl}"))
    assert made.course.algorithm == FedGL() and made.seeds == (1, 2, 3, 4, 5)
    assert {type(attack) for attack in made.attacks} == set(ATTACKS.values()) and made.lines == ((),)
    assert read_audit(None).course.seed == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{base: {round: 3}}", r"audit.yaml: round is not a known key; .*Did you mean 'rounds'"),
        ("{base: {rounds: 0}}", r"audit.yaml: .*rounds"),
        ("{base: {}, attack: [lira]}", r"audit.yaml: attack is not a known key; .*Did you mean 'attacks'"),
        ("{base: {}, attacks: [vocabulry]}", r"audit.yaml: entry 1 of attacks.* Did you mean 'vocabulary'"),
        ("{base: {}, guards: [[secure_sum, nonsense]]}", r"audit.yaml: .*'nonsense'"),
        ("{base: {}, seeds: 0}", r"audit.yaml: .*seeds is 0.* at least 1"),
        ("{base: {algorithm: fedgl}, guards: [secure_sum]}", r"audit.yaml: guards: SecureSum: FedGL looks at each"),
        ("{base: {}, guards: [delta, delta]}", r"audit.yaml: guards has 'delta' twice"),
    ],
)
def test_what_a_file_cannot_mean_is_refused_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=told):
        read_audit(written(tmp_path, text))
