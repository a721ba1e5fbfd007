"""Ports, command keys and response codes of the RabbitMQ stream protocol."""

from enum import IntEnum
from typing import Self

DEFAULT_PORT = 5552
DEFAULT_TLS_PORT = 5551
RESPONSE = 0x8000  # bit of the key that marks a response


class Key:
    """Command keys; plain numbers, because an enumeration of so many takes long to import."""

    DECLARE_PUBLISHER = 0x0001
    PUBLISH = 0x0002
    PUBLISH_CONFIRM = 0x0003
    PUBLISH_ERROR = 0x0004
    QUERY_PUBLISHER_SEQUENCE = 0x0005
    DELETE_PUBLISHER = 0x0006
    SUBSCRIBE = 0x0007
    DELIVER = 0x0008
    CREDIT = 0x0009
    STORE_OFFSET = 0x000A
    QUERY_OFFSET = 0x000B
    UNSUBSCRIBE = 0x000C
    CREATE = 0x000D
    DELETE = 0x000E
    METADATA = 0x000F
    METADATA_UPDATE = 0x0010
    PEER_PROPERTIES = 0x0011
    SASL_HANDSHAKE = 0x0012
    SASL_AUTHENTICATE = 0x0013
    TUNE = 0x0014
    OPEN = 0x0015
    CLOSE = 0x0016
    HEARTBEAT = 0x0017
    ROUTE = 0x0018
    PARTITIONS = 0x0019
    CONSUMER_UPDATE = 0x001A
    EXCHANGE_COMMAND_VERSIONS = 0x001B
    STREAM_STATS = 0x001C
    CREATE_SUPER_STREAM = 0x001D
    DELETE_SUPER_STREAM = 0x001E
    RESOLVE_OFFSET_SPEC = 0x001F  # since RabbitMQ 4.3; 4.0 answers UNKNOWN_FRAME


KEYS = {key: name.lower() for name, key in vars(Key).items() if name.isupper()}


class ResponseCode(IntEnum):
    """Response codes of the RabbitMQ stream protocol.

    Each is an int, so it compares equal to the `code` of an error: `error.code ==
    ResponseCode.ACCESS_REFUSED`.

    :ivar meaning: what the code means (str); errors contain it.
    """

    meaning: str

    def __new__(cls, code: int, meaning: str = '') -> Self:
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = self.__doc__ = meaning
        return self

    OK = 0x01, 'the request succeeded'
    STREAM_DOES_NOT_EXIST = 0x02, 'the stream does not exist'
    SUBSCRIPTION_ID_ALREADY_EXISTS = 0x03, 'the connection already has a subscription of that id'
    SUBSCRIPTION_ID_DOES_NOT_EXIST = 0x04, 'the connection has no subscription of that id'
    STREAM_ALREADY_EXISTS = 0x05, 'the stream already exists'
    STREAM_NOT_AVAILABLE = 0x06, 'the stream is not available at the moment'
    SASL_MECHANISM_NOT_SUPPORTED = 0x07, 'the broker does not support the SASL mechanism'
    AUTHENTICATION_FAILURE = 0x08, 'the user or the password is wrong'
    SASL_ERROR = 0x09, 'the broker cannot read the SASL data of the client'
    SASL_CHALLENGE = 0x0A, 'the SASL mechanism requires another step'
    SASL_AUTHENTICATION_FAILURE_LOOPBACK = 0x0B, 'the user may connect only from loopback'
    VIRTUAL_HOST_ACCESS_FAILURE = (
        0x0C,
        'the virtual host does not exist or refuses the user, or a limit of connections is reached',
    )
    UNKNOWN_FRAME = 0x0D, 'the broker does not know the command, or cannot read it'
    FRAME_TOO_LARGE = 0x0E, 'the frame is larger than the negotiated maximum'
    INTERNAL_ERROR = 0x0F, 'the broker failed; its log contains the reason'
    ACCESS_REFUSED = 0x10, 'the user does not have the permission'
    PRECONDITION_FAILED = (
        0x11,
        'a precondition failed: the request is not valid, or the state of the broker does not'
        ' allow it, for example during a disk alarm',
    )
    PUBLISHER_DOES_NOT_EXIST = 0x12, 'the publisher is not declared on the connection'
    NO_OFFSET = 0x13, 'no offset is stored under that reference'
    SASL_CANNOT_CHANGE_MECHANISM = 0x14, 'an open connection cannot change its SASL mechanism'
    SASL_CANNOT_CHANGE_USERNAME = 0x15, 'an open connection cannot change its user'
