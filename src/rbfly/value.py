"""What is declared by its fields, as a frozen dataclass is, which takes far longer to make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform, get_origin

if TYPE_CHECKING:
    from dataclasses import Field

__all__ = ['Value']

DATACLASSES: dict[type, Any] = {}


def dataclass_of(kind: type[Value]) -> Any:
    """A dataclass of the same fields, for what is seldom asked of one."""
    if kind in DATACLASSES:
        return DATACLASSES[kind]
    from dataclasses import field, make_dataclass  # takes long

    fields = []
    for name, annotation in kind._kinds.items():
        default = {'default': getattr(kind, name)} if hasattr(kind, name) else {}
        shown: Any = field(repr=name not in kind._hidden, **default)
        fields.append((name, annotation, shown))
    return DATACLASSES.setdefault(kind, make_dataclass(kind.__name__, fields, frozen=True))


class OfDataclass:
    """An attribute that a dataclass has."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Value | None, owner: type[Value]) -> Any:
        if self.name != '__signature__':
            return getattr(dataclass_of(owner), self.name)
        if owner.__init__ is not Value.__init__:
            raise AttributeError(self.name)
        from inspect import signature

        return signature(dataclass_of(owner))


def of_class(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.startswith('ClassVar')
    return get_origin(annotation) is ClassVar


@dataclass_transform(frozen_default=True)
class Value:
    """The fields are the annotations of the class; an attribute of it is a default."""

    _kinds: ClassVar[dict[str, Any]] = {}  # by the names of the fields
    _hidden: ClassVar[tuple[str, ...]] = ()  # fields that are not shown
    __match_args__: ClassVar[tuple[str, ...]] = ()
    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__, __dataclass_params__ = OfDataclass(), OfDataclass()
        __signature__ = OfDataclass()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        kinds = {name: kind for name, kind in cls.__annotations__.items() if not of_class(kind)}
        if kinds:
            cls._kinds = cls._kinds | kinds
            cls.__match_args__ = tuple(cls._kinds)  # type: ignore[misc]

    def __init__(self, /, *values: Any, **named: Any) -> None:
        if named or len(values) != len(self._kinds):
            values = self._complete(values, named)
        held = self.__dict__
        for name, value in zip(self._kinds, values):  # noqa: B905 - are as many, and asking is slow
            held[name] = value
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the fields."""

    @classmethod
    def _complete(cls, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All values, in the order of the fields."""
        first = dict(zip(cls._kinds, values, strict=False))
        given = {name: getattr(cls, name) for name in cls._kinds if hasattr(cls, name)}
        given |= first | named
        if len(first) < len(values) or first.keys() & named or given.keys() != cls._kinds.keys():
            dataclass_of(cls)(*values, **named)  # tells what is wrong
        return tuple([given[name] for name in cls._kinds])

    def _values(self) -> tuple[Any, ...]:
        held = self.__dict__
        return tuple([held[name] for name in self._kinds])

    def __replace__(self, /, **changes: Any) -> Self:
        return type(self)(**dict(zip(self._kinds, self._values(), strict=True)) | changes)

    def __repr__(self) -> str:
        shown = [name for name in self._kinds if name not in self._hidden]
        values = ', '.join([f'{name}={getattr(self, name)!r}' for name in shown])
        return f'{type(self).__qualname__}({values})'

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __setattr__(self, name: str, value: object) -> None:
        self._keep('assign to', name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._keep('delete', name)
        super().__delattr__(name)

    def _keep(self, what: str, name: str) -> None:
        # as of a dataclass, a class below it that declares no fields may set what is none
        if name in self._kinds or '_kinds' in type(self).__dict__:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f'cannot {what} field {name!r}')
