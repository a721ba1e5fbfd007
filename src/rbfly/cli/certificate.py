"""Reads what a certificate says: Python's ssl does so only if it trusts it (DER, X.509)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address

COMMON_NAME, ORGANIZATION = bytes.fromhex('550403'), bytes.fromhex('55040a')
ALTERNATIVE_NAMES = bytes.fromhex('551d11')
UTC_TIME, GENERAL_TIME = 0x17, 0x18
VERSION, EXTENSIONS, DNS, IP = 0xA0, 0xA3, 0x82, 0x87


@dataclass(frozen=True)
class Certificate:
    """What a certificate says.

    :ivar names: host names and addresses that it is for.
    :ivar issuer: common name of the authority, or else its organization.
    :ivar begins: when its validity begins.
    :ivar ends: when it expires.
    """

    names: tuple[str, ...]
    issuer: str
    begins: datetime
    ends: datetime


def read_certificate(der: bytes) -> Certificate:
    """Return what a certificate says.

    :raises ValueError: it is malformed.
    """
    try:
        (_, outer), *_ = elements(der)
        (_, signed), *_ = elements(outer)
        fields = elements(signed)
        if fields[0][0] == VERSION:
            fields = fields[1:]
        _serial, _algorithm, (_, issuer), (_, validity), (_, subject), *others = fields
        begins, ends = (time_of(tag, text) for tag, text in elements(validity))
        names = [name for tag, data in others if tag == EXTENSIONS for name in names_of(data)]
        names = names or [*filter(None, [name_of(subject)])]
        return Certificate(tuple(names), name_of(issuer), begins, ends)
    except (IndexError, ValueError) as ex:
        raise ValueError('the certificate is malformed') from ex


def elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and the contents of the elements in a row.

    :raises ValueError: an element ends after the data.
    """
    found, at = [], 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length >= 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], 'big')
            at += count
        if length > len(data) - at:
            raise ValueError('the certificate is malformed')
        found.append((tag, data[at : at + length]))
        at += length
    return found


def time_of(tag: int, text: bytes) -> datetime:
    if tag not in (UTC_TIME, GENERAL_TIME):
        raise ValueError('the certificate is malformed')
    pattern = '%y%m%d%H%M%SZ' if tag == UTC_TIME else '%Y%m%d%H%M%SZ'
    return datetime.strptime(text.decode('ascii'), pattern).replace(tzinfo=UTC)


def name_of(name: bytes) -> str:
    """Return the common name in a distinguished name, or else the organization; '' for neither."""
    found = {}
    for _, group in elements(name):
        for _, pair in elements(group):
            (_, kind), (_, value), *_ = elements(pair)
            found[kind] = value.decode(errors='replace')
    return found.get(COMMON_NAME) or found.get(ORGANIZATION) or ''


def names_of(extensions: bytes) -> list[str]:
    """Return the host names and addresses that extensions contain."""
    names = []
    for _, extension in elements(elements(extensions)[0][1]):
        (_, kind), *_, (_, content) = elements(extension)
        if kind == ALTERNATIVE_NAMES:
            for tag, value in elements(elements(content)[0][1]):
                if tag == DNS:
                    names.append(value.decode(errors='replace'))
                elif tag == IP:
                    names.append(str(ip_address(value)))
    return names
