"""Shares: any t give the secret back, fewer say nothing, wrong ones are found."""

from __future__ import annotations

import os
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.privacy.secure_sum import shamir
from isthmus.privacy.secure_sum.shamir import BadShares, P

PURPOSE = b"test"


def dealt(secret: bytes, threshold: int, number: int) -> dict[int, bytes]:
    shares = shamir.split(secret, threshold, number, os.urandom(shamir.coin_bytes(threshold)))
    return dict(enumerate(shares, 1))


def is_prime(number: int) -> bool:
    """Miller and Rabin, with the first bases; wrong with a probability below 4^-40."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 42):
        value = pow(base, odd, number)
        if value not in (1, number - 1) and not any(pow(value, 2**k, number) == number - 1 for k in range(1, twos)):
            return False
    return True


def test_the_field_is_that_of_the_smallest_prime_above_32_bytes() -> None:
    assert is_prime(P)
    assert not any(is_prime(number) for number in range(2**256 + 1, P, 2))


@pytest.mark.parametrize(("threshold", "number"), [(1, 1), (1, 3), (2, 3), (3, 3), (3, 5), (4, 6)])
def test_every_choice_of_t_shares_gives_the_secret(threshold: int, number: int) -> None:
    secret = os.urandom(32)
    shares = dealt(secret, threshold, number)
    for size in range(threshold, number + 1):
        for chosen in combinations(shares, size):
            found = shamir.recovered({c: shares[c] for c in chosen}, threshold, lambda tried: tried == secret)
            assert found == (secret, ())


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31)])
def test_the_smallest_and_the_largest_secret_are_numbers_of_the_field(secret: bytes) -> None:
    assert shamir.recovered(dealt(secret, 2, 3), 2, lambda tried: tried == secret)[0] == secret


def test_shares_are_values_of_the_polynomial() -> None:
    """Against the definition, with coefficients that can be read off."""
    coins = b"".join(number.to_bytes(64, "little") for number in (7, 11))
    shares = shamir.split((5).to_bytes(32, "little"), 3, 4, coins)
    assert [int.from_bytes(share, "little") for share in shares] == [5 + 7 * x + 11 * x * x for x in (1, 2, 3, 4)]


def test_fewer_shares_fit_every_secret_equally_well() -> None:
    """For each other secret there is one polynomial through the same t - 1 shares."""
    shares = dealt(os.urandom(32), 3, 5)
    for _ in range(20):
        other = os.urandom(32)
        points = {0: int.from_bytes(other, "little"), **{p: shamir.value_of(shares[p]) for p in (2, 4)}}
        assert shamir.interpolated(points, 0) == points[0]
        assert 0 <= shamir.interpolated(points, 1) < P


def test_fewer_than_t_are_refused() -> None:
    secret = os.urandom(32)
    shares = dealt(secret, 3, 5)
    with pytest.raises(BadShares, match="2 usable shares came back, 3 are needed"):
        shamir.recovered({p: shares[p] for p in (1, 5)}, 3, lambda tried: True)


@pytest.mark.parametrize("wrong", [(1,), (4,), (1, 6), (2, 3)])
def test_wrong_shares_are_found_among_enough(wrong: tuple[int, ...]) -> None:
    secret = os.urandom(32)
    shares = dealt(secret, 3, 6)
    for place in wrong:
        shares[place] = os.urandom(32) + b"\0"
    assert shamir.recovered(shares, 3, lambda tried: tried == secret) == (secret, wrong)


@pytest.mark.parametrize("odd", [b"", b"\xff" * 33, bytes(32), bytes(34), P.to_bytes(33, "little")])
def test_what_is_no_number_of_the_field_is_a_wrong_share(odd: bytes) -> None:
    secret = os.urandom(32)
    shares = {**dealt(secret, 2, 4), 2: odd}
    assert shamir.recovered(shares, 2, lambda tried: tried == secret) == (secret, (2,))


def test_shares_of_no_place_are_wrong() -> None:
    secret = os.urandom(32)
    shares = {**dealt(secret, 2, 3), 0: secret + b"\0"}  # f(0) is the secret itself: nobody holds that
    assert shamir.recovered(shares, 2, lambda tried: tried == secret) == (secret, (0,))


def test_without_a_proof_there_is_no_secret() -> None:
    shares = dealt(os.urandom(32), 2, 4)
    with pytest.raises(BadShares, match="no 2 of 4 shares"):
        shamir.recovered(shares, 2, lambda tried: False)


def test_as_many_choices_are_tried_as_is_said() -> None:
    tried = []
    with pytest.raises(BadShares):
        shamir.recovered(dealt(os.urandom(32), 10, 20), 10, lambda secret: bool(tried.append(secret)))
    assert len(tried) <= shamir.MAX_TRIES


@pytest.mark.parametrize(("threshold", "number"), [(0, 3), (4, 3), (-1, 3)])
def test_thresholds_that_cannot_be_are_refused(threshold: int, number: int) -> None:
    with pytest.raises(BadShares, match=f"the threshold is {threshold}"):
        shamir.split(bytes(32), threshold, number, b"")


def test_too_few_coins_and_short_secrets_are_refused() -> None:
    with pytest.raises(BadShares, match="64 random bytes are needed, found 3"):
        shamir.split(bytes(32), 2, 3, b"abc")
    with pytest.raises(BadShares, match="a secret has 32 bytes, found 31"):
        shamir.split(bytes(31), 1, 3, b"")


@settings(deadline=None, max_examples=40)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 4), st.randoms())
def test_any_secret_any_threshold(secret: bytes, threshold: int, more: int, random: object) -> None:
    shares = dealt(secret, threshold, threshold + more)
    chosen = random.sample(sorted(shares), threshold)  # type: ignore[attr-defined]
    assert shamir.recovered({p: shares[p] for p in chosen}, threshold, lambda tried: tried == secret)[0] == secret


def test_promises_differ_by_secret_and_purpose() -> None:
    secrets = [os.urandom(32) for _ in range(3)]
    found = {shamir.commitment(secret, purpose) for secret in secrets for purpose in (b"a", b"b")}
    assert len(found) == 6
