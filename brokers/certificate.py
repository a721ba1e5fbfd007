"""A certificate for a TLS listener on loopback, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .state import BrokerError

NAMES = 'subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1'
USAGE = 'keyUsage=critical,digitalSignature,keyCertSign'


def make(certificate: Path, key: Path) -> None:
    """Write a certificate for localhost, which is its own authority, and its key (PEM)."""
    command = [
        *('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256'),
        *('-nodes', '-days', '3650', '-subj', '/CN=localhost'),
        *('-addext', NAMES, '-addext', USAGE),
        *('-keyout', str(key), '-out', str(certificate)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise BrokerError(f'openssl cannot create a certificate: {done.stderr.strip()}')
