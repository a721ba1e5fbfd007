"""Who connects, and to which virtual host."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol.commands import SaslAuthenticate
from .uri import AuthMechanism, ConnectionInfo

__all__ = ['Credentials']


@dataclass(frozen=True)
class Credentials:
    """What a client presents during the handshake; the password is never shown."""

    username: str
    password: str = field(repr=False)
    virtual_host: str
    mechanism: AuthMechanism

    @classmethod
    def of(cls, info: ConnectionInfo, mechanism: AuthMechanism) -> Credentials:
        return cls(info.username, info.password, info.virtual_host, mechanism)

    def authenticate(self) -> SaslAuthenticate:
        """Make the request that proves the user's identity."""
        if self.mechanism is AuthMechanism.EXTERNAL:  # the certificate has proved it
            return SaslAuthenticate(self.mechanism.value, b'')
        # in one expression: a local variable would show the password in a traceback
        return SaslAuthenticate(
            self.mechanism.value, f'\0{self.username}\0{self.password}'.encode()
        )
