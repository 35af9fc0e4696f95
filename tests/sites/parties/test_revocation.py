"""Certificates that end, are renewed, and are revoked; and what server and silos make of it."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="install it with: pip install 'isthmus[sites]'")

from isthmus import __version__
from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.runtime.envelope import Answer
from isthmus.runtime.flare import provision
from isthmus.sites.courses.messages import Proposal, Terms
from isthmus.sites.parties import certificates
from isthmus.sites.parties.admission import (
    TWICE_SECONDS,
    Entrance,
    Roll,
    certificate_problem,
    probe_server,
    wait_for_server,
)
from isthmus.sites.parties.certificates import (
    EXPIRY_NOTICE_DAYS,
    REVOKED,
    Revocations,
    Revoked,
    expiry_notice,
    open_authority,
    read_list,
    read_passport,
    sign_list,
)
from isthmus.sites.parties.kit import Kit, expel, make_federation, open_kit, renew
from isthmus.sites.silo.policy import Policy
from tests.cli.command import call
from tests.sites.in_process import fake_hub, site_course


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("template") / "f"
    make_federation(out, "localhost:9", ["bank-a", "bank-b", "bank-c"])
    return out


@pytest.fixture
def out(template: Path, tmp_path: Path) -> Path:
    """A federation of three banks; copied, because keys take their time."""
    return Path(shutil.copytree(template, tmp_path / "f"))


def passport(folder: Path) -> Any:
    return read_passport((folder / "party.crt").read_bytes())


def days_pass(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Let certificates see a later day."""
    later = datetime.now(UTC).timestamp() + days * 86_400
    monkeypatch.setattr(certificates.time, "time", lambda: later)


# ---- renewal


def test_renew_gives_a_new_certificate_under_the_same_root_and_says_what_to_hand_out(out: Path) -> None:
    before, root = passport(out / "bank-a"), (out / "bank-a" / "rootCA.pem").read_bytes()
    other = (out / "bank-b" / "party.crt").read_bytes()
    key = (out / "bank-a" / "party.key").read_bytes()
    code, text = call("federation", "renew", "bank-a", "--folder", str(out))
    after = passport(out / "bank-a")
    assert code == 0 and f"valid until {after.last_day}" in text and "to bank-a" in text
    assert after.serial != before.serial and after.valid_until >= before.valid_until  # both are whole seconds
    assert (out / "bank-a" / "rootCA.pem").read_bytes() == root and (out / "bank-a" / "party.key").read_bytes() != key
    assert (out / "bank-b" / "party.crt").read_bytes() == other


def test_renew_without_names_renews_everybody(out: Path) -> None:
    before = {path.parent.name: passport(path.parent).serial for path in out.glob("*/party.crt")}
    done = renew(out)
    assert set(done.kits) == {"server", "operator", "bank-a", "bank-b", "bank-c"} == set(before)
    assert all(passport(path).serial != before[party] for party, path in done.kits.items())


def test_a_kit_that_was_deleted_comes_back_by_renew_and_with_another_serial(out: Path) -> None:
    before = passport(out / "bank-a")
    shutil.rmtree(out / "bank-a")
    make_federation(out, None, ["bank-a"])
    assert not (out / "bank-a").exists()
    renew(out, ["bank-a"])
    kit = open_kit(out / "bank-a", "site")
    assert passport(kit.path).serial != before.serial and kit.sites == ("bank-a", "bank-b", "bank-c")


def test_a_certificate_that_has_ended_can_be_renewed_and_the_command_is_named(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit = open_kit(out / "bank-a", "site")
    ended = provision.new_party("bank-a", _root(out), days=-0.01)
    kit.certificate.write_bytes(ended.certificate)
    kit.key.write_bytes(ended.key)
    problem = certificate_problem(kit, Revocations(kit).current)
    assert "isthmus federation renew bank-a" in problem and "valid from" in problem
    renew(out, ["bank-a"])
    assert certificate_problem(kit, Revocations(kit).current) == ""


def _root(out: Path) -> provision.Pair:
    authority = open_authority(out)
    return provision.Pair(authority.root, authority.root_key)


def test_every_command_that_opens_a_kit_tells_of_its_end_in_time(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = open_kit(out / "bank-a", "site")
    assert expiry_notice(kit) == ""
    days_pass(monkeypatch, provision.PARTY_DAYS - EXPIRY_NOTICE_DAYS - 1)
    assert expiry_notice(kit) == ""
    days_pass(monkeypatch, provision.PARTY_DAYS - EXPIRY_NOTICE_DAYS + 1)
    assert "isthmus federation renew bank-a" in expiry_notice(kit) and passport(kit.path).last_day in expiry_notice(kit)
    said: list[str] = []
    assert not wait_for_server(kit, said.append, lambda: True)  # what join, submit and courses begin with
    assert [line for line in said if "renew bank-a" in line] == said and len(said) == 1
    server: list[str] = []
    Roll(open_kit(out / "server", "server"), server.append)
    assert len(server) == 1 and "renew server" in server[0]


def test_the_end_of_the_root_is_told_and_a_renewed_root_keeps_what_the_old_one_signed(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit, old = open_kit(out / "bank-a", "site"), (out / "bank-b" / "rootCA.pem").read_bytes()
    days_pass(monkeypatch, provision.ROOT_DAYS - EXPIRY_NOTICE_DAYS + 1)
    assert "isthmus federation renew --root" in expiry_notice(kit)
    monkeypatch.undo()
    before = passport(out / "bank-a").serial
    code, text = call("federation", "renew", "--root", "--folder", str(out))
    new = kit.root.read_bytes()
    assert code == 0 and "rootCA.pem to everybody" in text and new != old
    assert passport(out / "bank-a").serial == before  # the parties' own come when they are asked for
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(kit.certificate.read_bytes())
    for root in (old, new):
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(root))
    renew(out, ["bank-b"])
    renewed = x509.load_pem_x509_certificate((out / "bank-b" / "party.crt").read_bytes())
    renewed.verify_directly_issued_by(x509.load_pem_x509_certificate(old))


def test_a_certificate_that_the_root_cuts_short_is_told(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "ROOT_DAYS", 100)
    renew(out, root=True)
    code, text = call("federation", "renew", "bank-a", "--folder", str(out))
    assert code == 0 and "isthmus federation renew --root" in text
    root = read_passport((out / "bank-a" / "rootCA.pem").read_bytes())
    assert passport(out / "bank-a").valid_until == root.valid_until


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["renew", "bank-x"], "'bank-x' is not of this federation; known: bank-a"),
        (["expel", "bank-x"], "'bank-x'"),
        (["expel", "server"], "renew server --revoke-old"),
    ],
)
def test_who_cannot_be_renewed_or_expelled_is_named_and_nothing_changes(words: list[str], part: str, out: Path) -> None:
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, text = call("federation", *words, "--folder", str(out))
    assert code == 2 and part in text
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


# ---- the list


def test_an_expelled_site_is_off_every_list_and_its_certificates_are_on_the_signed_one(out: Path) -> None:
    first = passport(out / "bank-b").serial
    renew(out, ["bank-b"])  # it has two certificates that are valid
    second = passport(out / "bank-b").serial
    code, text = call("federation", "expel", "bank-b", "--folder", str(out))
    assert code == 0 and "bank-b" in text and REVOKED in text
    for folder in (out / "server", out / "operator", out / "bank-a"):
        assert json.loads((folder / "kit.json").read_text())["sites"] == ["bank-a", "bank-c"]
        found = read_list((folder / REVOKED).read_bytes(), (folder / "rootCA.pem").read_bytes())
        assert found.serials == {first, second} and found.expelled == {"bank-b"} and found.number == 1
    assert (out / REVOKED).is_file()


def test_an_expelled_site_comes_back_only_with_another_certificate(out: Path) -> None:
    old = passport(out / "bank-b").serial
    expel(out, ["bank-b"])
    with pytest.raises(BadInput, match="federation add bank-b"):
        renew(out, ["bank-b"])
    make_federation(out, None, ["bank-b"])
    new = passport(out / "bank-b").serial
    found = Revocations(open_kit(out / "server", "server")).current
    assert new != old and old in found.serials and new not in found.serials
    assert found.expelled == frozenset() and found.number == 2
    assert open_kit(out / "server", "server").sites == ("bank-a", "bank-c", "bank-b")


def test_renewing_with_revocation_ends_the_old_certificate_and_not_the_name(out: Path) -> None:
    old = passport(out / "bank-a").serial
    assert call("federation", "renew", "bank-a", "--revoke-old", "--folder", str(out))[0] == 0
    found = Revocations(open_kit(out / "server", "server")).current
    assert found.serials == {old} and found.expelled == frozenset()


def test_an_older_list_and_one_of_another_root_never_replace_a_newer_one(out: Path, tmp_path: Path) -> None:
    expel(out, ["bank-b"])
    older = (out / REVOKED).read_bytes()
    expel(out, ["bank-c"])
    kit = open_kit(out / "bank-a", "site")
    revocations = Revocations(kit)
    assert revocations.current.number == 2
    assert not revocations.offer(older) and revocations.current.number == 2
    (kit.path / REVOKED).write_bytes(older)  # somebody puts the old file back
    assert not revocations.reread() and Revocations(kit).current.expelled == {"bank-b", "bank-c"}
    (kit.path / REVOKED).unlink()
    assert Revocations(kit).current.number == 2
    foreign = provision.new_root("federation")
    with pytest.raises(BadInput, match="not signed by this federation's root"):
        revocations.offer(sign_list(foreign.certificate, foreign.key, 99, []))
    with pytest.raises(BadInput, match="damaged"):
        revocations.offer(b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    with pytest.raises(BadInput, match="limit"):
        revocations.offer(b"x" * (1 << 21))
    assert revocations.current.number == 2


def test_a_list_that_was_tampered_with_is_refused(out: Path) -> None:
    import base64

    expel(out, ["bank-b"])
    lines = (out / REVOKED).read_text().splitlines()
    content = bytearray(base64.b64decode("".join(lines[1:-1])))
    root = (out / "server" / "rootCA.pem").read_bytes()
    refused = 0
    for place in range(0, len(content), 7):
        changed = bytearray(content)
        changed[place] ^= 1
        text = base64.encodebytes(bytes(changed)).decode()
        with pytest.raises(BadInput):
            read_list(f"{lines[0]}\n{text}{lines[-1]}\n".encode(), root)
        refused += 1
    assert refused > 50
    (out / "server" / REVOKED).write_text("nonsense")
    with pytest.raises(BadInput, match=r"revoked\.crl cannot be used"):
        Roll(open_kit(out / "server", "server"), print)


def test_a_party_whose_own_certificate_was_revoked_does_not_start(out: Path) -> None:
    kit = open_kit(out / "bank-b", "site")
    expel(out, ["bank-b"])
    shutil.copy(out / REVOKED, kit.path / REVOKED)
    with pytest.raises(BadInput, match="was revoked: it was expelled"):
        wait_for_server(kit, print, lambda: True)
    server = (out / "server" / "party.crt").read_bytes(), (out / "server" / "party.key").read_bytes()
    renew(out, ["server"], revoke_old=True)
    Roll(open_kit(out / "server", "server"), print)
    (out / "server" / "party.crt").write_bytes(server[0])
    (out / "server" / "party.key").write_bytes(server[1])
    with pytest.raises(BadInput, match="was revoked: another took its place"):
        Roll(open_kit(out / "server", "server"), print)


def test_a_kit_whose_name_is_not_its_certificates_is_refused_at_once(out: Path) -> None:
    facts = json.loads((out / "bank-b" / "kit.json").read_text())
    (out / "bank-b" / "kit.json").write_text(json.dumps({**facts, "party": "bank-a"}))
    with pytest.raises(BadInput, match="kit of 'bank-a', but its certificate is for 'bank-b'"):
        wait_for_server(open_kit(out / "bank-b", "site"), print, lambda: True)


# ---- at a silo


@pytest.fixture
def standing(out: Path) -> Iterator[Kit]:
    """Somebody who shows the server's certificate, at an address of this machine."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(out / "server" / "rootCA.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(out / "server" / "party.crt", out / "server" / "party.key")
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("localhost", 0))
    over = threading.Event()

    def serve() -> None:
        listener.settimeout(0.1)
        while not over.is_set():
            try:
                with context.wrap_socket(listener.accept()[0], server_side=True) as secure:
                    secure.sendall(b"hello")
                    secure.settimeout(1)
                    secure.recv(1)
            except OSError:
                continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    for path in out.glob("*/kit.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "port": listener.getsockname()[1]}))
    yield open_kit(out / "bank-a", "site")
    over.set()
    thread.join()
    listener.close()


def test_a_server_whose_certificate_was_revoked_is_refused_by_silos(standing: Kit, out: Path) -> None:
    said: list[str] = []
    entrance = Entrance(standing, said.append)
    trusted = entrance.door().trusted()
    assert trusted == (out / "server" / "party.crt").read_bytes()  # and nothing else is
    assert probe_server(standing, entrance.revocations.current).problem == ""
    authority = open_authority(out)
    serial = passport(out / "server").serial
    authority.revoke("server", expelled=False)
    entrance.heard_list(authority.signed_list)
    assert serial in entrance.revocations.current.serials
    with pytest.raises(BadInput, match="the server's certificate was revoked"):
        entrance.check()
    assert entrance.door().trusted() is None and "was revoked" in said[-1]
    with pytest.raises(BadInput, match="was revoked"):
        wait_for_server(standing, print, lambda: False)


def test_a_site_that_poses_as_the_server_is_refused(standing: Kit, out: Path) -> None:
    pair = provision.new_party("bank-c", _root(out), host="localhost")  # as certificates of yesterday could be used
    (out / "bank-c" / "party.crt").write_bytes(pair.certificate)
    (out / "bank-c" / "party.key").write_bytes(pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(out / "server" / "rootCA.pem"))
    context.load_cert_chain(out / "bank-c" / "party.crt", out / "bank-c" / "party.key")
    with socket.create_server(("localhost", 0)) as listener:
        kit = Kit(**{**vars(standing), "port": listener.getsockname()[1]})

        def serve() -> None:
            with suppress(OSError), context.wrap_socket(listener.accept()[0], server_side=True) as secure:
                secure.sendall(b"hello")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert "its certificate is for 'bank-c'" in probe_server(kit, Revocations(kit).current).problem
        thread.join()


def test_a_silo_keeps_the_list_and_ends_when_it_is_on_it(out: Path) -> None:
    kit = open_kit(out / "bank-b", "site")
    entrance = Entrance(kit, lambda text: None)
    expel(out, ["bank-c"])
    entrance.heard_list((out / REVOKED).read_bytes())
    entrance.check()
    assert entrance.expelled() == {"bank-c"} and Revocations(kit).current.number == 1  # also after a restart
    entrance.heard_list(b"nonsense")
    expel(out, ["bank-b"])
    entrance.heard_list((out / REVOKED).read_bytes())
    with pytest.raises(BadInput, match="it was expelled"):
        entrance.check()


def test_a_kit_in_use_elsewhere_is_told_and_ends_after_a_while(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus.sites.parties import admission as entrance_file

    now = [0.0]
    monkeypatch.setattr(entrance_file.time, "monotonic", lambda: now[0])
    said: list[str] = []
    entrance = Entrance(open_kit(out / "bank-a", "site"), said.append)
    unwelcome = entrance.door().on_unwelcome
    unwelcome(False, "bank-a is connected already")
    now[0] = TWICE_SECONDS - 1
    unwelcome(False, "bank-a is connected already")
    entrance.check()
    entrance.came_in()  # the other one was gone after all
    now[0] = TWICE_SECONDS + 1
    unwelcome(False, "bank-a is connected already")
    entrance.check()
    now[0] = 3 * TWICE_SECONDS
    unwelcome(False, "bank-a is connected already")
    assert len(said) == 2
    with pytest.raises(BadInput, match="is in use elsewhere"):
        entrance.check()


def test_a_server_that_hands_on_nonsense_for_a_list_does_not_fill_the_silo_s_log(out: Path) -> None:
    said: list[str] = []
    entrance = Entrance(open_kit(out / "bank-a", "site"), said.append)
    for number in range(100):
        entrance.heard_list(b"nonsense %d" % number)
    assert len(said) == 1 and "the server's list of revoked certificates is not taken" in said[0]


def test_an_expelled_name_never_counts_among_the_sites_of_a_course(tmp_path: Path) -> None:
    hub = fake_hub(tmp_path, {"client-0": Policy(min_sites=3, tell_reasons=True, min_examples=1)})
    silo = hub.silos["client-0"]
    silo.expelled = lambda: {"client-2"}
    sites = ("client-0", "client-1", "client-2")
    proposal = encode(Proposal("ab" * 8, course_to_yaml(site_course(min_replies=3)), __version__, sites))
    assert "3 sites at least; this course has 2" in decode(silo.handle("propose", proposal), Terms).refusal
    silo.expelled = frozenset
    assert decode(silo.handle("propose", proposal), Terms).refusal == ""
    silo.expelled = lambda: {"client-1"}  # in the middle of the course
    answer: Answer = decode(silo.handle("exchange", b""), Answer)
    assert answer.failure is not None and "some of this course's were expelled" in answer.failure.reason


def test_the_roll_refuses_and_names_what_is_wrong(out: Path) -> None:
    from isthmus.runtime.flare.gate import Visitor

    said: list[str] = []
    server = open_kit(out / "server", "server")
    roll = Roll(server, said.append)
    seen = passport(out / "bank-b")

    def visitor(name: str = "bank-b", serial: int = seen.serial, days: float = 100) -> Visitor:
        return Visitor(name, serial, datetime.now(UTC) + timedelta(days=days), "", ("::1", 1))

    assert roll.refusal(visitor()) == ""
    assert "is not on the server's list" in roll.refusal(visitor("bank-x"))
    assert "ended on" in roll.refusal(visitor(days=-1))
    roll._welcome(visitor(days=20))
    assert "bank-b ends on" in said[-1] and "renew bank-b" in said[-1]

    class Nobody:
        def connected(self) -> set[str]:
            return {"bank-b", "bank-a", "operator"}

        def tell(self, peer: str, kind: str, data: bytes) -> str:
            told.append((peer, kind))
            return ""

    told: list[tuple[str, str]] = []
    expel(out, ["bank-b"])
    roll.take(open_kit(server.path, "server"), Nobody())
    assert "bank-b was expelled" in roll.refusal(visitor())
    assert told == [("bank-a", "revoked"), ("bank-b", "revoked")]


def test_what_is_on_the_list_can_be_read_back() -> None:
    root = provision.new_root("federation")
    entries = [
        Revoked(7, "bank-a", True, "2026-01-02T03:04:05+00:00"),
        Revoked(2**158, "bank-b", False, "2026-01-02T03:04:05+00:00"),
    ]
    found = read_list(sign_list(root.certificate, root.key, 5, entries), root.certificate)
    assert (found.number, found.serials, found.expelled) == (5, {7, 2**158}, {"bank-a"})
