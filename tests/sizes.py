"""Sizes of tests: RBFLY_TESTS=nightly runs those marked `nightly`, and draws more random cases."""

import os

NIGHTLY = os.environ.get('RBFLY_TESTS') == 'nightly'


def sized(ordinary: int, nightly: int) -> int:
    return nightly if NIGHTLY else ordinary
