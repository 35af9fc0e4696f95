from pathlib import Path

import pandas as pd

from .command import call


def write(folder: Path, nodes: dict[str, list[object]], edges: dict[str, list[object]]) -> Path:
    folder.mkdir()
    pd.DataFrame(nodes).to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame(edges).to_csv(folder / "edges.csv", index=False)
    return folder


def test_a_good_folder_is_described(tmp_path: Path) -> None:
    nodes = {"id": ["a", "b"], "height": [1.0, 2.0], "label": ["red", "blue"], "split": ["train", "val"]}
    code, text = call("data", "check", str(write(tmp_path / "g", nodes, {"source": ["a"], "target": ["b"]})))
    assert code == 0 and "2 nodes, 1 edges, 1 features, classes: blue, red" in text and "train: 1" in text


def test_everything_that_is_wrong_is_said_at_once_by_row(tmp_path: Path) -> None:
    nodes = {"id": ["a", "b", "a"], "height": [1.0, None, 3.0], "label": ["red", "green", "violet"]}
    folder = write(tmp_path / "g", nodes, {"source": ["a", "z"], "target": ["b", "a"]})
    code, text = call("data", "check", str(folder), "--classes", "red,green")
    assert code == 2
    for part in ("'a'", "'z'", "violet", "height"):
        assert part in text, text


def test_a_dataset_is_divided_into_folders_that_pass_the_check(tmp_path: Path) -> None:
    out = tmp_path / "silos"
    code, text = call("data", "split", "cora", "--names", "bank-a,bank-b", "--out", str(out), "splitter.name=random")
    assert code == 0 and "classes: Theory," in text
    assert sorted(path.name for path in out.iterdir()) == ["bank-a", "bank-b", "schema.yaml"]
    code, text = call("data", "check", str(out / "bank-a"))
    assert code == 0 and "1354 nodes" in text
    assert call("data", "split", "cora", "--out", str(out))[0] == 2
    for names in ("a,../evil", "a,a"):
        code, text = call("data", "split", "cora", "--out", str(tmp_path / "other"), "--names", names)
        assert code == 2 and "--names" in text and not (tmp_path / "other").exists()


def test_joining_with_a_broken_folder_ends_before_anything_is_connected(tmp_path: Path) -> None:
    from isthmus.sites.parties.kit import make_federation

    kits = make_federation(tmp_path / "f", "localhost:9", ["bank-a"])
    folder = write(tmp_path / "g", {"id": ["a"], "x": [1.0]}, {"source": ["a"], "target": ["nobody"]})
    code, text = call("join", str(kits["bank-a"]), "--data", str(folder))
    assert code == 2 and "nobody" in text
    code, text = call("join", str(kits["server"]), "--data", str(folder))
    assert code == 2 and "kit for the role site" in text
