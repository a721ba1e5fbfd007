"""Every response code has a sentence, in the errors and in the documentation."""

import copy
import pickle
import re
from pathlib import Path

import pytest

import rbfly.error
import rbfly.streams as rbs
import rbfly.testing
from rbfly.error import AuthenticationError, ProtocolError, PublishError, protocol_error
from rbfly.protocol.const import Key
from rbfly.streams import ResponseCode

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize('code', ResponseCode)
def test_error_contains_the_meaning_of_its_code(code: ResponseCode) -> None:
    error = protocol_error(code, command=Key.SUBSCRIBE, stream='orders')
    assert code.meaning in str(error)
    assert f'(code 0x{code:02x})' in str(error)
    assert error.code == code


def test_meanings_differ_and_are_not_names() -> None:
    meanings = [code.meaning for code in ResponseCode]
    assert len(set(meanings)) == len(meanings) == 21
    for code in ResponseCode:
        assert code.meaning != code.name.lower().replace('_', ' ')
        assert len(code.meaning.split()) >= 3
        assert not code.meaning.endswith('.')


def test_code_is_an_int() -> None:
    code = ResponseCode.ACCESS_REFUSED
    assert code == 0x10
    assert isinstance(code, int)
    assert ResponseCode(0x10) is code
    assert pickle.loads(pickle.dumps(code)) is copy.deepcopy(code) is code


def test_unknown_code() -> None:
    error = ProtocolError(0x7FFF, 'somewhere')
    assert str(error) == 'somewhere: unknown response code (code 0x7fff)'


def test_codes_of_errors_are_found_where_the_errors_are() -> None:
    assert ResponseCode is rbfly.error.ResponseCode is rbfly.testing.ResponseCode
    assert 'ResponseCode' in rbs.__all__
    error = PublishError(0x10, 7)
    assert error.errors[0].code == error.code == ResponseCode.ACCESS_REFUSED
    assert isinstance(protocol_error(ResponseCode.AUTHENTICATION_FAILURE), AuthenticationError)


def test_documentation_lists_every_code() -> None:
    text = (ROOT / 'doc' / 'reference' / 'api.rst').read_text()
    rows = re.findall(
        r'^   \* - `(\w+)`\n     - 0x(\w\w)\n     - (.*(?:\n       .*)*)$', text, re.M
    )
    found = {name: (int(code, 16), ' '.join(meaning.split())) for name, code, meaning in rows}
    assert found == {code.name: (code.value, code.meaning) for code in ResponseCode}
