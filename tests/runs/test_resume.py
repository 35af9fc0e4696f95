"""What a resume says: which key makes the course another one, and that nothing was left to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isthmus.config.load import load_course
from isthmus.core.errors import NotResumable, OtherCourse
from isthmus.runs.predicting import predictions
from isthmus.runs.simulated import resume, run

WORDS = ["dataset.name=csbm", "num_clients=2", "model.gnn.hidden=4", "rounds=2"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("resume") / "run"
    run(load_course({}, WORDS), run_dir=path)
    return path


def test_another_course_is_refused_with_the_keys_that_differ_and_both_values(done: Path) -> None:
    with pytest.raises(OtherCourse) as caught:
        resume(done, overrides=["algorithm.local_steps=9", "seed=3", "rounds=5"])
    assert str(caught.value) == (
        f"{done} is the run of another course: algorithm.local_steps was 4 and is 9, seed was 0 and is 3; "
        "resume with what it was started with"
    )
    with pytest.raises(OtherCourse, match=r"algorithm\.name was 'fedavg' and is 'fedprox'"):
        resume(done, overrides=["algorithm.name=fedprox"])


def test_the_run_s_own_course_counts_and_not_what_its_file_was_changed_to(done: Path) -> None:
    file = done / "course.yaml"
    before = file.read_text()
    file.write_text(before.replace("local_steps: 4", "local_steps: 5"))
    try:
        with pytest.raises(OtherCourse, match=r"algorithm\.local_steps was 4 and is 5"):
            resume(done)
    finally:
        file.write_text(before)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_resume_with_nothing_left_to_train_says_so(rounds: int, done: Path) -> None:
    result = resume(done, overrides=[f"rounds={rounds}"])
    assert result.num_rounds == 2
    assert f"nothing was left to train: 2 rounds were done and rounds is {rounds}" in result.notes[-1]
    assert sum("nothing was left" in note for note in resume(done).notes) == 1  # told for the last time only


def test_a_resume_that_goes_on_says_nothing_of_the_kind(done: Path) -> None:
    result = resume(done, overrides=["rounds=3"])
    assert result.num_rounds == 3 and not any("nothing was left" in note for note in result.notes)


def test_a_folder_cut_off_before_its_first_checkpoint_is_told_from_missing_data(done: Path, tmp_path: Path) -> None:
    (tmp_path / "course.yaml").write_text((done / "course.yaml").read_text())
    with pytest.raises(NotResumable, match="has no checkpoint"):
        resume(tmp_path)


# Two rounds by the version of before the rooms were moved (commit 86ae662), and what four rounds gave there:
# isthmus run rounds=2 algorithm.name=scaffold num_clients=2 "dataset={name: csbm, num_nodes: 40, num_features: 8}"
#     model.gnn.hidden=4 splitter.name=random
BEFORE = Path(__file__).parent / "before_the_rooms"
LOSSES = {"client-0": 0.5833755632, "client-1": 0.6340338528}


def test_a_run_of_before_the_rooms_were_moved_goes_on_as_it_would_have_then(tmp_path: Path) -> None:
    path = shutil.copytree(BEFORE, tmp_path / "run")
    result = resume(path, overrides=["rounds=4"])
    assert (result.num_rounds, result.best_round) == (4, 3)
    losses = {client: scores["loss"] for client, scores in result.client_scores.items()}
    assert losses == pytest.approx(LOSSES, rel=1e-6)
    assert not result.missing and result.metrics["global_model/global_graph"]["accuracy"] == 0.5


def test_the_model_of_a_run_of_before_the_rooms_were_moved_predicts(tmp_path: Path) -> None:
    path = shutil.copytree(BEFORE, tmp_path / "run")
    assert len(predictions(path, "csbm")) == 40
