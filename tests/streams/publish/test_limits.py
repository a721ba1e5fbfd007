"""Messages that are too large for a frame."""

from typing import Any

import pytest

from rbfly.error import RbFlyError
from rbfly.protocol._pending import ConfirmWaiter
from rbfly.protocol._publish import PublishWindow
from rbfly.streams.error import MessageTooLarge, PublisherError

LIMIT = 100 - 21


@pytest.mark.parametrize('message', [b'x' * (LIMIT + 1), ['x' * LIMIT]], ids=['bytes', 'list'])
def test_message_larger_than_a_frame_is_refused(message: Any) -> None:
    window = PublishWindow(0, 100, 10, 1, None, True)
    with pytest.raises(MessageTooLarge, match=f'the limit is {LIMIT} bytes') as caught:
        window.append(message, ConfirmWaiter())
    assert isinstance(caught.value, PublisherError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize('frame_max', [1, 20, 21])
def test_every_message_is_refused_if_frames_are_too_small(frame_max: int) -> None:
    window = PublishWindow(0, frame_max, 10, 1, None, False)
    with pytest.raises(RbFlyError, match='the limit is 0 bytes'):
        window.append(b'x', ConfirmWaiter())
