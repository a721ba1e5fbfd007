"""Modules that are imported when a program first uses one of their names."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any


class Later:
    """Stands for a module; annotations may name its classes, as in `-> events.Events`.

    :param name: absolute name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._name), name)
        setattr(self, name, value)
        return value


def later(module: str, names: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that exports names of other modules.

    :param names: the names, separated by spaces, by the absolute name of their module; a submodule
        may be one of its own names.
    """
    origins = {name: origin for origin, text in names.items() for name in text.split()}

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f'module {module!r} has no attribute {name!r}', name=name)
        origin = import_module(origins[name])
        value = origin if origin.__name__ == f'{module}.{name}' else getattr(origin, name)
        setattr(sys.modules[module], name, value)
        return value

    return get


if TYPE_CHECKING:
    import datetime as datetime
else:
    datetime = Later('datetime')
