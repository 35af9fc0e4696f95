import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus.core.errors import BadInput
from isthmus.data.folders.graph_folder import write_graph_folder
from isthmus.data.zoo import Cora
from isthmus.runs.folder import RunFolder, load_model_file, save_model_file
from isthmus.runs.predicting import predictions

from .command import call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "fedavg"
    assert call("run", "-q", "--out", str(path), "rounds=3", "model.gnn.hidden=8")[0] == 0
    return path


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_labels_and_probabilities_of_every_node_are_written(run: Path, name: str, tmp_path: Path) -> None:
    out = tmp_path / name
    code, text = call("predict", str(run), "--graph", "cora", "--out", str(out))
    assert code == 0 and "2708 predictions" in text
    table = pd.read_csv(out) if name.endswith("csv") else pd.read_parquet(out)
    probabilities = table[[column for column in table if column.startswith("p_")]]
    assert probabilities.shape == (2708, 7)
    assert probabilities.sum(axis=1).between(0.9999, 1.0001).all()
    assert (probabilities.idxmax(axis=1).str.removeprefix("p_") == table["label"].astype(str)).all()


def test_predictions_are_those_of_the_result_s_model(tmp_path: Path) -> None:
    course = ist.Course(rounds=3)
    result = ist.run(course, run_dir=tmp_path / "run")
    graph = Cora().load(tmp_path)
    expected = course.task.predict(result.model, course.task.prepare(graph)).probabilities
    found = predictions(tmp_path / "run", "cora").filter(regex="^p_").to_numpy()
    assert torch.allclose(expected, torch.tensor(found), atol=0, rtol=0)


def test_a_graph_folder_of_one_s_own_keeps_its_ids(run: Path, tmp_path: Path) -> None:
    part = Cora().load(tmp_path).subgraph(torch.tensor([5, 100, 7, 2000]))
    write_graph_folder(part, tmp_path / "mine", format="csv")
    table = predictions(run, str(tmp_path / "mine"))
    assert list(table["id"]) == ["5", "100", "7", "2000"]


def test_every_sample_of_a_node_has_a_row(tmp_path: Path) -> None:
    words = ["rounds=1", "algorithm.name=gfl_appnp", "dataset={name: csbm_sc, num_nodes: 20}", "num_clients=20"]
    words += ["splitter.name=node_hosts", "masks.name=ratio", "task.name=node_samples", "model.gnn.name=bias_free_mlp"]
    assert call("run", "-q", "--out", str(tmp_path / "run"), *words)[0] == 0
    table = predictions(tmp_path / "run", "csbm_sc")
    each = len(table) // 20
    assert each > 1 and table["id"].value_counts().eq(each).all()
    assert table["id"].is_monotonic_increasing and list(table["sample"][:each]) == list(range(each))


def test_a_method_without_a_global_model_asks_for_a_client(tmp_path: Path) -> None:
    path = tmp_path / "local"
    assert call("run", "-q", "--out", str(path), "rounds=1", "algorithm.name=local", "model.gnn.hidden=8")[0] == 0
    code, text = call("predict", str(path), "--graph", "cora", "--out", str(tmp_path / "a.csv"))
    assert code == 2 and "--client client-0" in text
    assert (
        call("predict", str(path), "--graph", "cora", "--out", str(tmp_path / "a.csv"), "--client", "client-2")[0] == 0
    )


def test_a_client_that_mended_its_graph_predicts_with_its_generator(tmp_path: Path) -> None:
    path = tmp_path / "sage"
    quick = ("latent=4", "hidden=4", "pretrain_steps=8", "cross_rounds=1", "num_generated=2")
    fields = ("rounds=1", "model.gnn.hidden=8", "algorithm.name=fedsage_plus", *(f"algorithm.{each}" for each in quick))
    assert call("run", "-q", "--out", str(path), "num_clients=2", *fields)[0] == 0
    part = Cora().load(tmp_path).subgraph(torch.arange(300))
    write_graph_folder(part, tmp_path / "mine", format="csv")
    mine = str(tmp_path / "mine")
    plain, first, second = (predictions(path, mine, client) for client in (None, "client-0", "client-1"))
    assert list(plain["id"]) == list(first["id"]) == list(second["id"]) and len(first) == 300
    columns = [column for column in plain if column.startswith("p_")]
    assert not plain[columns].equals(first[columns]) and not first[columns].equals(second[columns])
    with pytest.raises(BadInput, match=r"has no clients/nobody\.safetensors"):
        predictions(path, mine, "nobody")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--graph", "coral"], "Did you mean 'cora'?"),
        (["--graph", "folder"], "a kind of folder; give the path of yours, such as ./folder"),
        (["--graph", "mine/cora"], "there is no folder 'mine/cora'"),
        (["--graph", "cora", "--out", "x.json"], "must end in .csv or .parquet"),
        (["--graph", "cora", "--client", "nobody"], "nobody"),
    ],
)
def test_bad_input_is_named(
    run: Path, args: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = call("predict", str(run), *args)
    assert code == 2 and part in text
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_not_replaced_without_force(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.csv"
    out.write_text("mine")
    assert call("predict", str(run), "--graph", "cora", "--out", str(out))[0] == 2
    assert out.read_text() == "mine"
    assert call("predict", str(run), "--graph", "cora", "--out", str(out), "--force")[0] == 0


def test_scores_that_are_not_finite_are_refused_and_nothing_is_written(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    params, facts = load_model_file(RunFolder.open(tmp_path / "run").model)
    params["gnn.layers.0.weight"][0] = torch.nan
    save_model_file(RunFolder.open(tmp_path / "run").model, params, facts)
    code, text = call("predict", str(tmp_path / "run"), "--graph", "cora", "--out", str(tmp_path / "a.csv"))
    assert code == 2 and "scores are NaN or infinite for" in text and "of 2708 nodes of cora" in text
    assert "smaller algorithm.optimizer.lr" in text and not (tmp_path / "a.csv").exists()


def test_a_graph_with_other_features_is_refused(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    pd.DataFrame({"id": ["a", "b"], "height": [1.0, 2.0]}).to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame({"source": ["a"], "target": ["b"]}).to_csv(folder / "edges.csv", index=False)
    code, text = call("predict", str(run), "--graph", str(folder), "--out", str(tmp_path / "a.csv"))
    assert code == 2 and "1 features" in text and "1433" in text


def test_a_dataset_s_name_is_the_dataset_and_a_path_the_folder_in_every_command(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Cora().load(tmp_path).subgraph(torch.tensor([5, 100, 7, 2000]))
    write_graph_folder(part, tmp_path / "cora", format="csv")
    monkeypatch.chdir(tmp_path)
    told = "cora is the dataset; the folder of that name is ./cora"
    for word, number in (("cora", 2708), ("./cora", 4), ("cora/", 4), (str(tmp_path / "cora"), 4)):
        code, text = call("predict", str(run), "--graph", word, "--out", "labels.csv", "--force")
        assert code == 0 and f"{number} predictions" in text and (told in text) is (number == 2708)
        code, text = call("data", "show", word, *(["--clients", "1"] if word == "cora" else []))
        assert code == 0 and ("2,708" in text or "2708" in text) is (number == 2708)
        assert (told in text) is (number == 2708)
        code, text = call("data", "split", word, "--clients", "1", "--out", f"silos{number}-{len(word)}")
        assert code == 0 and f"{number} nodes" in text and (told in text) is (number == 2708)


def test_a_schema_of_a_folder_that_is_called_like_the_dataset_is_not_compared(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notes: list[str] = []
    monkeypatch.setattr("isthmus.runs.predicting.digest_at", lambda path: "another")
    kept_schema = load_model_file(RunFolder(run).model)
    save_model_file(RunFolder(run).model, kept_schema[0], {**kept_schema[1], "schema": "trained"})
    try:
        predictions(run, "cora", note=notes.append)
    finally:
        save_model_file(RunFolder(run).model, *kept_schema)
    assert notes == []


@pytest.mark.parametrize("command", [("predict",), ("data", "show"), ("data", "split")])
def test_the_help_says_which_of_the_two_a_name_means(command: tuple[str, ...]) -> None:
    text = " ".join(call(*command, "--help")[1].replace("│", " ").split())
    assert "a folder called so is ./NAME" in text
