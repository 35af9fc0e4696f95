"""Silos sign what they agree to, and one that asks for company counts the signatures."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isthmus.config.load import course_to_yaml
from isthmus.core.codec import decode, encode
from isthmus.core.errors import BadInput
from isthmus.sites.courses.messages import Receipt, Terms, Verdict
from isthmus.sites.courses.site_course import Patience, SiteCourse
from isthmus.sites.silo.consent import Consent, Identity
from isthmus.sites.silo.policy import Policy
from tests.sites.in_process import FakeHub, fake_hub, site_course
from tests.sites.silo.test_service import ID, proposal

SITES = ("client-0", "client-1", "client-2")
TODAY = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
KEYS: dict[str, Any] = {}


def key_of(name: str, kind: str = "ec") -> Any:
    if name not in KEYS:
        KEYS[name] = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
    return KEYS[name]


def certificate(
    name: str, key: Any, root: str = "root", days: tuple[int, int] = (-1, 1), serves: bool = False
) -> x509.Certificate:
    def called(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    use = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
    return (
        x509.CertificateBuilder()
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .subject_name(called(name))
        .issuer_name(called("root"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(TODAY + days[0] * DAY)
        .not_valid_after(TODAY + days[1] * DAY)
        .sign(key_of(root), hashes.SHA256())
    )


def identity(folder: Path, name: str, **changes: Any) -> Identity:
    """Write a party's root, certificate and key, and return them."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = changes.pop("kind", "ec")
    key = key_of(changes.pop("key", name), kind)
    made = certificate(name, key, **changes)
    (folder / f"{name}.root").write_bytes(certificate("root", key_of("root")).public_bytes(Encoding.PEM))
    (folder / f"{name}.crt").write_bytes(made.public_bytes(Encoding.PEM))
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / f"{name}.key").write_bytes(plain)
    return Identity(folder / f"{name}.root", folder / f"{name}.crt", folder / f"{name}.key")


# ---- signatures


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_a_consent_counts_for_the_course_that_was_signed_and_no_other(kind: str, tmp_path: Path) -> None:
    signer, other = identity(tmp_path, f"{kind}-a", kind=kind), identity(tmp_path, "b")
    consents = {f"{kind}-a": signer.sign(ID, "rounds: 3"), "b": other.sign(ID, "rounds: 3")}
    assert other.count(ID, "rounds: 3", consents) == (2, {})
    for course_id, text in ((ID, "rounds: 4"), ("cd" * 16, "rounds: 3")):
        number, problems = other.count(course_id, text, consents)
        assert number == 0 and all("not of this course" in problem for problem in problems.values())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"root": "another root"}, "not of this federation"),
        ({"days": (-3, -1)}, "not valid today"),
        ({"days": (1, 2)}, "not valid today"),
    ],
)
def test_a_certificate_that_the_root_does_not_vouch_for_does_not_count(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    judge, bad = identity(tmp_path, "judge"), identity(tmp_path, "bad", **changes)
    number, problems = judge.count(ID, "x", {"bad": bad.sign(ID, "x")})
    assert number == 0 and problem in problems["bad"]


def test_names_that_are_made_up_and_one_silo_under_many_names_do_not_count(tmp_path: Path) -> None:
    judge, a = identity(tmp_path, "judge"), identity(tmp_path, "a")
    consent = a.sign(ID, "x")
    number, problems = judge.count(ID, "x", {"a": consent, "made-up": consent, "c": consent})
    assert number == 1 and set(problems) == {"made-up", "c"}
    twin = identity(tmp_path, "twin", key="a")  # another certificate for the same key
    assert judge.count(ID, "x", {"a": consent, "twin": twin.sign(ID, "x")}) == (1, {})


def test_a_revoked_certificate_does_not_count(tmp_path: Path) -> None:
    judge, a = identity(tmp_path, "judge"), identity(tmp_path, "a")
    serial = x509.load_pem_x509_certificate((tmp_path / "a.crt").read_bytes()).serial_number
    told = replace(judge, revoked=lambda: frozenset({serial}))
    number, problems = told.count(ID, "x", {"a": a.sign(ID, "x")})
    assert number == 0 and "revoked" in problems["a"]


@pytest.mark.parametrize(
    "consent",
    [
        Consent("", torch.zeros(3, dtype=torch.uint8)),
        Consent("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", torch.zeros(3, dtype=torch.uint8)),
        Consent("x" * 10**6, torch.zeros(3, dtype=torch.uint8)),
        Consent("é", torch.zeros(10**6, dtype=torch.uint8)),
        Consent("x", torch.zeros(3)),
    ],
)
def test_nonsense_is_no_consent(consent: Consent, tmp_path: Path) -> None:
    number, problems = identity(tmp_path, "judge").count(ID, "x", {"a": consent})
    assert number == 0 and problems["a"]


# ---- silos that count


def certified(tmp_path: Path, policy: Policy | None = None, sites: tuple[str, ...] = SITES) -> FakeHub:
    """Silos of which some have certificates; all have the same policy."""
    careful = policy or Policy(min_sites=3, min_examples=1)
    hub = fake_hub(tmp_path, dict.fromkeys(SITES, careful))
    for name in sites:
        hub.silos[name].identity = identity(tmp_path / "keys", name)
    return hub


def run(hub: FakeHub, tmp_path: Path, said: list[str] | None = None) -> Any:
    patience = Patience(start_seconds=0.2, pause_seconds=0.2, num_retries=0, retry_seconds=0.0)
    course = site_course(min_replies=3, rounds=2)
    return SiteCourse(
        course, hub, SITES, tmp_path / "run", patience=patience, say=(said if said is not None else []).append
    ).run()


def test_silos_that_ask_for_three_see_three_signatures_and_train(tmp_path: Path) -> None:
    hub = certified(tmp_path)
    told: list[str] = []
    hub.silos["client-1"].say = told.append
    assert run(hub, tmp_path).num_rounds == 2
    assert "3 silos of the federation signed this course" in told


def test_a_silo_that_is_not_shown_enough_signatures_answers_nothing(tmp_path: Path) -> None:
    """Two of three sites are the server's invention: it answers for them, and has nothing to show."""
    hub = certified(tmp_path, sites=("client-0",))
    silo = hub.silos["client-0"]
    said: list[str] = []
    silo.say = said.append
    offered = proposal(course=course_to_yaml(site_course(min_replies=3)))
    terms: Terms = decode(silo.handle("propose", encode(offered)), Terms)
    assert terms.refusal == "" and terms.consent is not None
    failure = silo.handle("exchange", b"anything")
    assert b"refused" in failure  # before any verdict
    forged = {site: terms.consent for site in SITES}
    receipt: Receipt = decode(silo.handle("verdict", encode(Verdict(ID, "", consents=forged))), Receipt)
    assert receipt.problem.startswith("policy:")
    assert any(
        "1 silos with a certificate of the federation signed this course, the policy asks for 3" in t for t in said
    )
    assert silo.handle("exchange", b"anything") == b"isthmus: not agreed"


def test_a_proposal_that_comes_to_nothing_does_not_spare_the_one_before_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = certified(tmp_path, sites=("client-0",)).silos["client-0"]
    text = course_to_yaml(site_course(min_replies=3))
    assert decode(silo.handle("propose", encode(proposal(course=text))), Terms).refusal == ""

    def broken(*arguments: Any) -> Any:
        raise BadInput("the noise of this course was drawn from a secret that is lost")

    monkeypatch.setattr(silo, "_silo", broken)
    assert decode(silo.handle("propose", encode(proposal(course_id="cd" * 16, course=text))), Terms).refusal
    assert b"refused" in silo.handle("exchange", b"anything")  # it is not yet seen that three silos agreed


def test_signatures_of_another_text_of_the_same_course_do_not_count(tmp_path: Path) -> None:
    hub = certified(tmp_path)
    consents = {}
    for site, rounds in zip(SITES, (2, 3, 3), strict=True):
        offered = proposal(course=course_to_yaml(site_course(min_replies=3, rounds=rounds)))
        terms: Terms = decode(hub.silos[site].handle("propose", encode(offered)), Terms)
        assert terms.consent is not None
        consents[site] = terms.consent
    receipt: Receipt = decode(
        hub.silos["client-0"].handle("verdict", encode(Verdict(ID, "", consents=consents))), Receipt
    )
    assert receipt.problem.startswith("policy:")


def test_a_silo_that_comes_back_is_shown_the_signatures_of_all(tmp_path: Path) -> None:
    hub = certified(tmp_path)

    def restart(site: str, kind: str, data: bytes) -> None:
        if (site, kind) == ("client-1", "exchange") and hub.log.count((site, kind)) == 3:
            hub.restart("client-1")

    hub.hook = restart
    patience = Patience(start_seconds=0.2, pause_seconds=0.2, num_retries=3, retry_seconds=0.0)
    found = SiteCourse(
        site_course(min_replies=3, rounds=3), hub, SITES, tmp_path / "run", patience=patience, say=lambda text: None
    ).run()
    assert found.num_rounds == 3


def test_a_silo_that_asks_for_no_company_needs_no_signatures(tmp_path: Path) -> None:
    hub = certified(tmp_path, Policy(), sites=())
    assert run(hub, tmp_path).num_rounds == 2


def test_a_server_cannot_count_itself_among_the_silos(tmp_path: Path) -> None:
    """It has a certificate of the federation too."""
    judge, server = identity(tmp_path, "judge"), identity(tmp_path, "server", serves=True)
    number, problems = judge.count(ID, "x", {"server": server.sign(ID, "x")})
    assert number == 0 and "a server is no silo" in problems["server"]
