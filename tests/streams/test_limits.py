"""Messages that fit no frame."""

from typing import Any

import pytest

from rbfly.error import RbFlyError
from rbfly.protocol._frames import PendingConfirms
from rbfly.protocol._publish import PublishWindow
from rbfly.streams.error import MessageTooLarge, PublisherError

ROOM = 100 - 21


@pytest.mark.parametrize('message', [b'x' * (ROOM + 1), ['x' * ROOM]], ids=['bytes', 'list'])
def test_message_that_fits_no_frame(message: Any) -> None:
    window = PublishWindow(0, 100, 10, 1, None, True, False)
    with pytest.raises(MessageTooLarge, match=f'the limit is {ROOM} bytes') as caught:
        window.append(message, PendingConfirms())
    assert isinstance(caught.value, PublisherError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize('frame_max', [1, 20, 21])
def test_frame_without_room_for_any_message(frame_max: int) -> None:
    window = PublishWindow(0, frame_max, 10, 1, None, False, False)
    with pytest.raises(RbFlyError, match='the limit is 0 bytes'):
        window.append(b'x', PendingConfirms())
