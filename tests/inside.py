"""Parts of the client that tests look at, each found in one place: a move costs one line here."""

from typing import Any


def cluster_of(client: Any) -> Any:
    """Return the connections and the settings of a client, or of one of its sessions."""
    return client._cluster


def pool_of(client: Any) -> Any:
    """Return the connections of a client, by role, and its connects."""
    return cluster_of(client)._pool


def dialer_of(client: Any) -> Any:
    """Return what a client knows about the addresses of its brokers."""
    return cluster_of(client)._dialer


def locator_of(client: Any) -> Any:
    """Return the part of a client that asks where streams are."""
    return cluster_of(client)._locator


def use_settings_of(other: Any, client: Any) -> None:
    """Let a client connect to the broker of another client."""
    settings = cluster_of(other).settings
    cluster_of(client).settings = settings
    pool_of(client)._settings = dialer_of(client)._settings = settings


def session_of(user: Any) -> Any:
    """Return the session of a publisher or a subscription."""
    return user._session


def core_of(publisher: Any) -> Any:
    """Return the compiled part of a publisher, which has its window and its connection."""
    return publisher._core


def window_of(publisher: Any) -> Any:
    """Return the messages of a publisher that are not confirmed."""
    return core_of(publisher).window


def connection_of(publisher: Any) -> Any:
    """Return the connection that a publisher uses, or None."""
    return core_of(publisher).connection


def cursor_of(subscription: Any) -> Any:
    """Return the compiled part of a subscription, which has its queue of chunks."""
    return session_of(subscription).cursor
