"""Reading of certificates that Python does not trust."""

import ssl
from datetime import UTC, datetime
from random import Random

import pytest
import trustme

from rbfly.cli.certificate import read_certificate

BEGINS = datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)
# from 2050 on, times have another type
ENDS = [datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2050, 1, 2, tzinfo=UTC)]


def der_of(certificate: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())


@pytest.mark.parametrize('ends', ENDS)
def test_names_issuer_and_times(ends: datetime) -> None:
    authority = trustme.CA(organization_name='Example')
    names = ['rabbit-1.example', '10.0.0.1', '::1']
    certificate = authority.issue_cert(*names, not_before=BEGINS, not_after=ends)
    found = read_certificate(der_of(certificate))
    assert found.names == tuple(names)
    assert (found.begins, found.ends) == (BEGINS, ends)
    assert 'Example' in found.issuer


def test_damaged_certificate_raises_value_error(rng: Random) -> None:
    der = der_of(trustme.CA().issue_cert('rabbit-1.example'))
    for _ in range(500):
        damaged = bytearray(der)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            read_certificate(bytes(damaged[: rng.randrange(len(der))]))
            read_certificate(bytes(damaged))
        except ValueError:
            pass
    for size in range(len(der)):
        with pytest.raises(ValueError, match='malformed'):
            read_certificate(der[:size])


def test_damaged_issuer_raises_value_error() -> None:
    """One byte is left after the kind of an attribute."""
    der = der_of(trustme.CA(organization_name='Example').issue_cert('rabbit-1.example'))
    kind = bytes.fromhex('060355040a')
    at = der.index(kind)
    size = len(kind) + der[at + len(kind) + 1]  # up to the last byte of the value, without the head
    damaged = der[: at + 1] + bytes([size - 1]) + der[at + 2 :]
    with pytest.raises(ValueError, match='malformed'):
        read_certificate(damaged)
