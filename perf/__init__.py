"""The benchmark of RbFly, other clients and floors."""


class CommandError(Exception):
    """A command cannot run; the message is printed without a traceback."""


class UsageError(CommandError):
    """The arguments of a command are wrong."""
