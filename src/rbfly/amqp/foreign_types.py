"""Types that other libraries decode: models of pydantic, and Structs with tags or constraints.

Also functions of the program.  Each library is imported only for types that belong to it.
"""

from __future__ import annotations

import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from ._plan import Plan

UNIONS = (typing.Union, types.UnionType)
MSGSPEC_ERROR = re.compile(r'(.*) - at `\$(.*)`', re.DOTALL)


def name_of(kind: Any) -> str:
    """Name of a type, for errors."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is None or kind is type(None):
        return 'None'
    if kind is Ellipsis:
        return '...'
    if origin is None:
        return getattr(kind, '__name__', None) or repr(kind)
    if origin is Annotated:
        return name_of(args[0])
    if origin is Literal:
        return f'Literal[{", ".join(map(repr, args))}]'
    names = [name_of(arg) for arg in args]
    if origin in UNIONS:
        return ' | '.join(names)
    return f'{getattr(origin, "__name__", origin)}[{", ".join(names) or "()"}]'


def body_plan(decode: Callable[[bytes], Any]) -> Plan:
    """Return the plan of a codec: a function that decodes the bytes of the body."""
    return Plan('the codec').foreign(decode, explain_codec, True)


def belongs_to(kind: Any, library: str, name: str) -> bool:
    """Whether a class is derived from one of a library, which is imported if that is so."""
    module = sys.modules.get(library)
    return module is not None and isinstance(kind, type) and issubclass(kind, getattr(module, name))


def is_pydantic(kind: Any) -> bool:
    return belongs_to(kind, 'pydantic', 'BaseModel') or hasattr(kind, '__pydantic_validator__')


def foreign_plan(kind: Any) -> Plan | None:
    """Return the plan of a type that another library decodes as a whole; None for others."""
    args = [item for item in get_args(kind) if item is not type(None)]
    if get_origin(kind) in UNIONS and len(args) > 1:
        if all(is_pydantic(item) for item in args):
            return pydantic_plan(kind)
        if all(belongs_to(item, 'msgspec', 'Struct') for item in args):
            return msgspec_plan(kind)
    return None


def pydantic_plan(kind: Any) -> Plan:
    from pydantic import TypeAdapter

    validate: Callable[[Any], Any] = TypeAdapter(kind).validate_python
    return Plan(name_of(kind)).foreign(validate, explain_pydantic)


def msgspec_plan(kind: Any) -> Plan:
    import msgspec

    def convert(value: Any) -> Any:
        return msgspec.convert(value, kind)

    return Plan(name_of(kind)).foreign(convert, explain_msgspec)


def path_of(steps: Sequence[object]) -> str:
    """The path of a value in a body."""
    return ''.join(
        f'.{step}' if isinstance(step, str) and step.isidentifier() else f'[{step!r}]'
        for step in steps
    )


def explain_pydantic(error: Exception) -> tuple[str, str]:
    """Path and text of an error of pydantic: the first of those that it lists."""
    found = getattr(error, 'errors', None)
    if found is None:
        return explain_codec(error)
    first, *others = found()
    text = first['msg']
    return path_of(first['loc']), f'{text} (and {len(others)} more)' if others else text


def explain_msgspec(error: Exception) -> tuple[str, str]:
    """Path and text of an error of msgspec."""
    found = MSGSPEC_ERROR.fullmatch(str(error))
    text, path = (found[1], found[2]) if found else (str(error), '')
    return path, (text[:1].lower() + text[1:]).replace('`', '')


def explain_codec(error: Exception) -> tuple[str, str]:
    """Path and text of an error of a function of the program."""
    return '', f'{type(error).__name__}: {error}'
