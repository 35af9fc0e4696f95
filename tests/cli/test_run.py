import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isthmus.cli.run import split_words
from isthmus.core.errors import BadInput
from isthmus.runs.folder import load_model_file
from tests.processes import Process, isthmus

from .command import call

QUICK = ["rounds=2", "model.gnn.hidden=8"]


def test_run_prints_a_table_and_the_run_folder(tmp_path: Path) -> None:
    done = isthmus("run", "--out", "mine", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "client-4" in done.stdout and "whole graph" in done.stdout
    assert done.stdout.strip().endswith("run folder: mine")
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert names == {"course.yaml", "journal.jsonl", "checkpoint.isth", "model.safetensors", "report.html", "report.md"}
    assert "Traceback" not in done.stderr


def test_json_output_is_one_object_and_matches_the_journal(tmp_path: Path) -> None:
    done = isthmus("run", "--json", "--out", "mine", "--baselines", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    events = [json.loads(line) for line in (tmp_path / "mine" / "journal.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "course" and events[-1]["event"] == "end"
    assert out["metrics"] == events[-1]["metrics"]
    assert set(out["baselines"]) == {"local", "global"}
    exchanges = [event for event in events if event["event"] == "exchange"]
    assert out["bytes_up"] == sum(event["bytes_up"] for event in exchanges) > 0
    assert (tmp_path / "mine" / "baselines" / "local" / "clients" / "client-0.safetensors").is_file()


def test_profile_tells_where_the_time_went_in_words_and_as_json(tmp_path: Path) -> None:
    code, text = call("run", "-q", "--profile", "--out", str(tmp_path / "a"), *QUICK)
    assert code == 0
    assert all(part in text for part in ("local compute", "codec", "aggregation", "evaluation", "engine", "set-up"))
    code, text = call("run", "--json", "--profile", "--out", str(tmp_path / "b"), *QUICK)
    assert code == 0
    spent = json.loads(text)["profile"]
    assert spent["local compute"] > 0 and spent["engine"] > 0
    assert json.loads(text)["done_alone"] == {}


def test_profile_tells_what_was_done_one_by_one_and_why(tmp_path: Path) -> None:
    words = ["model.gnn.name=gat", "model.gnn.attention_dropout=0.1", *QUICK]
    code, text = call("run", "-q", "--profile", "--out", str(tmp_path / "a"), *words)
    assert code == 0
    assert re.search(
        r"\none by one: 5 clients, client-0 the first: its model has a part that is not known to run", text
    )


def test_monitors_are_one_line_each_and_in_the_json_and_figures_in_the_folder(tmp_path: Path) -> None:
    words = ["monitors=[cka,walk_distance]", *QUICK]
    code, text = call("run", "-q", "--out", str(tmp_path / "a"), *words)
    assert code == 0
    assert re.search(r"\ncka, round 2: mean 0\.\d{4}, least 0\.\d{4}, largest 0\.\d{4} over pairs of 5 clients\n", text)
    assert re.search(
        r"\nwalk_distance: mean 0\.\d{4}, least 0\.\d{4}, largest 0\.\d{4} over pairs of 5 clients\n", text
    )
    assert {path.name for path in (tmp_path / "a").glob("*.svg")} == {"monitor-cka.svg", "monitor-walk_distance.svg"}
    code, text = call("run", "--json", "--out", str(tmp_path / "b"), *words)
    found = json.loads(text)["monitors"]
    assert code == 0 and set(found) == {"cka", "walk_distance"}
    assert set(found["cka"]) == {"round", "models", "clients", "matrix", "mean", "least", "largest", "absent"}
    code, text = call("run", "--json", "--out", str(tmp_path / "c"), *QUICK)
    assert code == 0 and json.loads(text)["monitors"] == {}


def test_overrides_reach_the_course_and_the_folder_can_be_run_again(tmp_path: Path) -> None:
    code, _ = call("run", "-q", "--out", str(tmp_path / "a"), "algorithm.name=fedprox", "algorithm.mu=0.5", *QUICK)
    assert code == 0
    assert "mu: 0.5" in (tmp_path / "a" / "course.yaml").read_text()
    code, _ = call("run", "-q", "--out", str(tmp_path / "b"), str(tmp_path / "a" / "course.yaml"))
    assert code == 0
    first, second = (load_model_file(tmp_path / name / "model.safetensors")[0] for name in "ab")
    assert all(bool((first[key] == second[key]).all()) for key in first)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["rouds=3"], ["rouds is not a known key", "Did you mean 'rounds'?"]),
        (["algorithm.name=fedprx"], ["algorithm.name is 'fedprx'", "Did you mean 'fedprox'?"]),
        (["rounds=many"], ["rounds is 'many', expected a whole number"]),
        (["num_clients=2709"], ["2709", "2708"]),
        (["dataset.name=citeseer"], ["citeseer", "ISTHMUS_DATA"]),
        (["model.gnn.dropout=1.5"], ["dropout is 1.5"]),
        (["absent.yaml"], ["absent.yaml", "cannot be read"]),
        (["rounds=1", "second.yaml"], ["second.yaml", "only the first word"]),
        (["algorithm.optimizer.lr=0"], ["algorithm.optimizer: lr is 0", "must be positive"]),
        (["monitors=[cca]"], ["monitors has 'cca'", "Did you mean 'cka'?"]),
        (["sampling.fraction=2"], ["sampling: fraction is 2", "(0, 1]"]),
    ],
)
def test_bad_input_is_named_with_exit_code_2_and_nothing_is_written(
    words: list[str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path / "nothing"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no way out: a download fails at once
    code, text = call("run", *words)
    assert code == 2
    for part in parts:
        assert part in text, text
    assert not (tmp_path / "runs").exists() and not (tmp_path / "nothing").exists()


def test_a_real_process_prints_one_line_and_no_traceback_on_bad_input(tmp_path: Path) -> None:
    done = isthmus("run", "algorithm.name=fedsage", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: command line: algorithm.name is 'fedsage'")
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout
    as_json = isthmus("run", "--json", "algorithm.name=fedsage", cwd=tmp_path)
    assert as_json.returncode == 2 and "fedsage" in json.loads(as_json.stdout)["error"]


def test_an_existing_run_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not touch")
    code, text = call("run", "--out", str(tmp_path / "mine"), *QUICK)
    assert code == 2 and "exists already" in text and "--resume" in text
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_checkpoint_of_another_course_is_refused(tmp_path: Path) -> None:
    assert call("run", "-q", "--out", str(tmp_path / "a"), *QUICK)[0] == 0
    before = (tmp_path / "a" / "journal.jsonl").read_bytes()
    code, text = call("run", "--resume", str(tmp_path / "a"), "seed=7")
    assert code == 2 and "another course" in text
    assert (tmp_path / "a" / "journal.jsonl").read_bytes() == before


def test_resume_needs_a_run_folder_and_nothing_else(tmp_path: Path) -> None:
    assert call("run", "--resume", str(tmp_path))[0] == 2
    code, text = call("run", "--resume", str(tmp_path), "--baselines")
    assert code == 2 and "--baselines" in text


def test_a_client_without_training_nodes_is_said_so_and_the_course_goes_on(tmp_path: Path) -> None:
    # One label per class for 300 clients: most of them have no training node.
    code, text = call(
        "run",
        "-q",
        "--out",
        str(tmp_path / "a"),
        *QUICK,
        "num_clients=300",
        "masks.name=per_class",
        "masks.num_per_class=1",
    )
    assert code == 0
    assert "has no training examples: it trains nothing" in text


def test_resumed_with_more_rounds_it_has_the_same_bits_as_one_long_run(tmp_path: Path) -> None:
    long = ["rounds=6", "model.gnn.hidden=8", "sampling.fraction=0.6"]
    assert call("run", "-q", "--out", str(tmp_path / "whole"), *long)[0] == 0
    assert call("run", "-q", "--out", str(tmp_path / "parts"), *long, "rounds=3")[0] == 0
    assert call("run", "-q", "--resume", str(tmp_path / "parts"), "rounds=6")[0] == 0
    whole, parts = (load_model_file(tmp_path / name / "model.safetensors")[0] for name in ("whole", "parts"))
    assert all(bool((whole[key] == parts[key]).all()) for key in whole)
    events = [json.loads(line) for line in (tmp_path / "parts" / "journal.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["event"] == "round"] == [1, 2, 3, 4, 5, 6]
    assert sum(event["event"] == "end" for event in events) == 1


LONG = ["rounds=60", "model.gnn.hidden=8", "algorithm.name=local"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "whole"
    assert call("run", "-q", "--out", str(folder), *LONG)[0] == 0
    return folder


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_a_checkpoint_from_which_the_same_bits_follow(
    kill: signal.Signals, tmp_path: Path, whole: Path
) -> None:
    process = Process(
        [sys.executable, "-m", "isthmus", "run", "--out", "cut", *LONG],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    journal = tmp_path / "cut" / "journal.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and '"round": 5' in journal.read_text()):
        time.sleep(0.01)
    os.kill(process.pid, kill)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "go on with: isthmus run --resume cut" in errors and "Traceback" not in errors
    assert call("run", "-q", "--resume", str(tmp_path / "cut"))[0] == 0
    for client in range(5):
        one, two = (
            load_model_file(run / "clients" / f"client-{client}.safetensors")[0] for run in (tmp_path / "cut", whole)
        )
        assert all(bool((one[key] == two[key]).all()) for key in one)


def test_the_first_word_may_be_a_file() -> None:
    assert split_words(["c.yaml", "a=1"]) == (Path("c.yaml"), ["a=1"])
    assert split_words(["a=1"]) == (None, ["a=1"])
    with pytest.raises(BadInput, match="only the first word"):
        split_words(["a=1", "c.yaml"])


def test_help_has_examples_and_completion_is_offered(tmp_path: Path) -> None:
    code, text = call("run", "--help")
    assert code == 0 and "isthmus run course.yaml algorithm.name=fedprox" in text
    code, text = call("--help")
    assert code == 0 and "--install-completion" in text and "Exit codes" in text


def test_a_course_that_fails_before_its_first_checkpoint_promises_none(tmp_path: Path) -> None:
    words = ("algorithm.name=gfl_appnp", "model.gnn.batch_norm=true", "rounds=1")
    code, text = call("run", "-q", "--out", str(tmp_path / "run"), *words)
    assert code == 1 and "set batch_norm to false" in text
    assert "checkpoint" not in text and not (tmp_path / "run" / "checkpoint.isth").exists()


def test_the_table_says_by_what_its_best_round_was_chosen(tmp_path: Path) -> None:
    words = ["run", "-q", "rounds=1", "dataset.name=csbm", "num_clients=2"]
    code, text = call(*words, "stopping.metric=loss", "--out", str(tmp_path / "loss"))
    assert code == 0 and "test accuracy, best round by loss 1 of 1" in text
    code, text = call(*words, "--out", str(tmp_path / "accuracy"))
    assert code == 0 and "test accuracy, best round 1 of 1" in text
