"""Fixtures of the tests of processing."""

from tests.streams.conftest import clients, group, proxy, super_stream

__all__ = ['clients', 'group', 'proxy', 'super_stream']
