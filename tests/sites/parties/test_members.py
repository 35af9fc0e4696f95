"""Who is of a federation: parties are added and never dropped; kits of yesterday still work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

from isthmus.core.errors import BadInput
from isthmus.sites.parties.kit import hold, make_federation, open_kit
from tests.cli.command import call

pytestmark = pytest.mark.usefixtures("keys_of_before")


def facts(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "kit.json").read_text())
    return found


def test_init_with_a_new_site_keeps_all_others_in_every_kit(tmp_path: Path) -> None:
    make_federation(tmp_path, "localhost:9", ["bank-a", "bank-b"])
    kits = make_federation(tmp_path, "localhost:9", ["bank-c"])
    assert set(kits) == {"server", "operator", "bank-a", "bank-b", "bank-c"}
    for path in kits.values():
        assert facts(path)["sites"] == ["bank-a", "bank-b", "bank-c"]


def test_init_again_with_the_same_sites_changes_nothing(tmp_path: Path) -> None:
    make_federation(tmp_path, "localhost:9", ["bank-a", "bank-b"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    make_federation(tmp_path, "localhost:9", ["bank-b"])
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_the_command_adds_sites_without_being_told_the_server_again(tmp_path: Path) -> None:
    out = str(tmp_path / "f")
    assert call("federation", "init", "--sites", "bank-a", "--server", "localhost:9", "--out", out)[0] == 0
    code, text = call("federation", "add", "bank-b", "--folder", out)
    assert code == 0 and facts(tmp_path / "f" / "server")["sites"] == ["bank-a", "bank-b"], text
    assert "bank-b" in text and "new" in text and "isthmus serve" in text
    code, text = call("federation", "init", "--sites", "bank-c", "--out", out)
    assert code == 0 and facts(tmp_path / "f" / "server")["sites"] == ["bank-a", "bank-b", "bank-c"], text


def test_a_federation_has_the_operators_that_it_was_told(tmp_path: Path) -> None:
    out = str(tmp_path / "f")
    words = ("--sites", "bank-a", "--server", "localhost:9", "--out", out)
    assert call("federation", "init", *words, "--operators", "alice,bob")[0] == 0
    kit = open_kit(tmp_path / "f" / "server", "server")
    assert kit.operators == ("alice", "bob") and not (tmp_path / "f" / "operator").exists()
    assert open_kit(tmp_path / "f" / "alice", "operator").party == "alice"
    assert call("federation", "add", "--operators", "carol", "--folder", out)[0] == 0
    assert open_kit(tmp_path / "f" / "server", "server").operators == ("alice", "bob", "carol")


def test_a_kit_from_before_there_were_several_operators_has_the_one(tmp_path: Path) -> None:
    kits = make_federation(tmp_path, "localhost:9", ["bank-a"])
    old = facts(kits["server"])
    del old["operators"]
    (kits["server"] / "kit.json").write_text(json.dumps(old))
    assert open_kit(kits["server"], "server").operators == ("operator",)


def test_sites_that_an_earlier_init_had_dropped_from_the_kits_are_listed_again(tmp_path: Path) -> None:
    """What the folder of yesterday looks like: no list but the kits', and a ledger with everybody's certificate."""
    make_federation(tmp_path, "localhost:9", ["bank-a", "bank-b"])
    (ledger,) = (tmp_path / "authority").rglob("cert.json")
    content = json.loads(ledger.read_text())
    ledger.write_text(json.dumps({name: value for name, value in content.items() if not name.startswith(":")}))
    for path in tmp_path.glob("*/kit.json"):
        old = {key: value for key, value in json.loads(path.read_text()).items() if key != "operators"}
        path.write_text(json.dumps({**old, "sites": ["bank-b"]}))
    kits = make_federation(tmp_path, "localhost:9", ["bank-c"])
    assert set(facts(kits["server"])["sites"]) == {"bank-a", "bank-b", "bank-c"}  # type: ignore[call-overload]
    assert facts(kits["server"])["operators"] == ["operator"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--sites", "bank-a", "--server", "elsewhere:9"], "'elsewhere:9'"),
        (["--sites", "bank-b", "--name", "other"], "'other'"),
        (["--sites", "operator"], "'operator'"),
        (["--sites", "localhost"], "'localhost'"),
        (["--sites", "bank-a", "--operators", "bank-a"], "'bank-a'"),
        (["--sites", "alice", "--operators", "alice"], "'alice'"),
        (["--sites", "bank-b", "--operators", "Bob"], "'Bob'"),
    ],
)
def test_what_cannot_be_added_is_named_and_nothing_is_changed(words: list[str], part: str, tmp_path: Path) -> None:
    out = tmp_path / "f"
    make_federation(out, "localhost:9", ["bank-a"])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, text = call("federation", "init", *words, "--out", str(out))
    assert code == 2 and part in text and "Traceback" not in text, text
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_init_without_a_server_needs_a_federation_that_exists(tmp_path: Path) -> None:
    code, text = call("federation", "init", "--sites", "bank-a", "--out", str(tmp_path / "f"))
    assert code == 2 and "--server" in text and not (tmp_path / "f").exists()
    code, text = call("federation", "add", "bank-a", "--folder", str(tmp_path / "f"))
    assert code == 2 and "no federation" in text and not (tmp_path / "f").exists()


def test_a_kit_that_was_handed_out_is_not_made_a_second_time(tmp_path: Path) -> None:
    out = tmp_path / "f"
    make_federation(out, "localhost:9", ["bank-a", "bank-b"])
    shutil.rmtree(out / "bank-a")
    code, text = call("federation", "init", "--sites", "bank-a,bank-c", "--out", str(out))
    assert code == 0 and not (out / "bank-a").exists()
    assert "federation renew bank-a" in text
    assert facts(out / "bank-c")["sites"] == ["bank-a", "bank-b", "bank-c"]


def test_the_authority_keeps_no_key_but_its_own(tmp_path: Path) -> None:
    kits = make_federation(tmp_path, "localhost:9", ["bank-a"])
    key = (kits["bank-a"] / "party.key").read_text().splitlines()[1]
    for path in (tmp_path / "authority").rglob("*"):
        assert path.is_dir() or key not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("party", "role", "remedy"),
    [
        ("operator", "operator", "isthmus courses KIT attach ID.*another operator's kit.*--operators NAME"),
        ("north", "site", "end that one first"),
        ("server", "server", "end that one first"),
    ],
)
def test_a_kit_that_is_in_use_is_told_with_what_would_do(tmp_path: Path, party: str, role: str, remedy: str) -> None:
    make_federation(tmp_path / "out", "localhost:8443", ["north"])
    kit = open_kit(tmp_path / "out" / party, role)
    with hold(kit), pytest.raises(BadInput, match=rf"is in use by another process.*{remedy}"), hold(kit):
        pass


@pytest.mark.parametrize(
    "change",
    [{"sites": "bank-a"}, {"sites": [1]}, {"sites": ["../x"]}, {"party": "../x"}, {"operators": None}, {"port": "9"}],
)
def test_a_kit_with_impossible_facts_is_damaged(change: dict[str, object], tmp_path: Path) -> None:
    kits = make_federation(tmp_path, "localhost:9", ["bank-a"])
    (kits["bank-a"] / "kit.json").write_text(json.dumps({**facts(kits["bank-a"]), **change}))
    with pytest.raises(BadInput, match="is damaged"):
        open_kit(kits["bank-a"], "site")


@pytest.mark.sites
def test_a_running_server_takes_a_site_that_was_added(tmp_path: Path) -> None:
    from isthmus.sites.serve import Server
    from isthmus.sites.up import free_port
    from tests.sites.in_process import until
    from tests.sites.raw_peer import RawPeer

    kits = make_federation(tmp_path, f"localhost:{free_port()}", ["bank-a"])
    said: list[str] = []
    server = Server(open_kit(kits["server"], "server"), interface="localhost", say=said.append)
    try:
        kit = open_kit(make_federation(tmp_path, None, ["bank-b"])["bank-b"], "site")
        until(lambda: "bank-b is of the federation now" in said)
        peer = RawPeer(kit)
        try:
            peer.stream()
            until(lambda: server.hub.connected() == {"bank-b"})
            assert server.kit.sites == ("bank-a", "bank-b")
        finally:
            peer.close()
        (kits["server"] / "kit.json").write_text("{")
        until(lambda: any("is damaged" in line for line in said))
        assert server.kit.sites == ("bank-a", "bank-b")
    finally:
        server.stop()


def test_a_watch_goes_on_after_a_change_that_could_not_be_taken(tmp_path: Path) -> None:
    from isthmus.sites.parties.kit import Watch
    from tests.sites.in_process import until

    seen: list[str] = []

    def changed() -> None:
        seen.append((tmp_path / "file").read_text())
        raise OSError("no")

    watch = Watch([tmp_path / "file"], changed, 0.01)
    try:
        for text in ("one", "three"):
            (tmp_path / "file").write_text(text)
            until(lambda text=text: text in seen, 10)
    finally:
        watch.stop()
