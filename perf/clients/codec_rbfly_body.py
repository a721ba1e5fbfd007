"""This client's codec, given the body instead of a message, as `Publisher.send` is."""

from . import codec_rbfly
from .codec import Case, Message


def case(work: str, message: Message) -> Case:
    return codec_rbfly.case(work, message, 'data')
