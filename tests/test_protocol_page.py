"""The page of versions has each command of the protocol."""

import re

from rbfly.protocol.const import KEYS
from tests.examples import ROOT

PAGE = (ROOT / 'doc' / 'reference' / 'protocol.rst').read_text()


def test_each_command_is_documented() -> None:
    rows = re.findall(r'^   \* - 0x([\da-f]{2})\n     - (\w+)', PAGE, re.M)
    names = {int(key, 16): re.sub('(?<=[a-z])(?=[A-Z])', '_', name) for key, name in rows}
    assert {key: name.lower() for key, name in names.items()} == KEYS
