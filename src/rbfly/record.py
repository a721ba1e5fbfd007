"""Frozen dataclasses that generate no code: a module that defines many is imported at once."""

from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from ._record import Base

R = TypeVar('R', bound='Record')


class Described:
    """An attribute of a class for `dataclasses` and `inspect`, made when they ask for it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: object, cls: 'type[Record]') -> Any:
        import inspect
        from dataclasses import MISSING, field, make_dataclass

        if cls is Record:
            raise AttributeError(self.name)
        defaults = {name: getattr(cls, name, MISSING) for name in cls.field_types}
        made = make_dataclass(
            cls.__name__,
            [(name, cls.field_types[name], field(default=defaults[name])) for name in defaults],
            frozen=True,
        )
        return inspect.signature(made) if self.name == '__signature__' else vars(made)[self.name]


@dataclass_transform(frozen_default=True)
class Record(Base):
    """Base of values: a subclass only annotates its fields, as a dataclass does.

    :cvar field_types: annotations by field.
    """

    __match_args__: ClassVar[tuple[str, ...]] = ()
    field_types: ClassVar[dict[str, Any]] = {}
    __dataclass_fields__: ClassVar[dict[str, Any]] = Described()  # type: ignore[assignment]
    __dataclass_params__: ClassVar[Any] = Described()
    __signature__: ClassVar[Any] = Described()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {
            name: kind
            for name, kind in cls.__annotations__.items()
            if not (kind.startswith('ClassVar') if isinstance(kind, str) else is_class_var(kind))
        }
        cls.field_types = cls.field_types | own
        cls.__match_args__ = tuple(cls.field_types)  # type: ignore[misc]

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.field_types:
            from dataclasses import FrozenInstanceError

            raise FrozenInstanceError(f'{name!r} of {type(self).__name__} cannot be changed')
        super().__setattr__(name, value)  # of a program's subclass

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (type(self), *[getattr(self, name) for name in self.field_types])

    def __replace__(self, **changes: Any) -> Self:
        return replace(self, **changes)


class CheckedRecord(Record):
    """Base of values whose `__post_init__` checks them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__post_init__()

    def __post_init__(self) -> None:
        raise NotImplementedError


def is_class_var(kind: object) -> bool:
    return getattr(kind, '__origin__', None) is ClassVar


def restore(cls: type[R], *values: Any) -> R:
    """Return an unpickled record."""
    return cls(**dict(zip(cls.field_types, values, strict=True)))


def replace(record: R, **changes: Any) -> R:
    """Return a record with other values of some fields."""
    values = {name: getattr(record, name) for name in type(record).field_types}
    return type(record)(**values | changes)
