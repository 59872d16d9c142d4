"""What can go wrong. Every error of the library is an OutriderError; its class says of what kind."""

from __future__ import annotations


class OutriderError(Exception):
    """A call failed; the text is one line for people. `status` is the stable name of its kind."""

    status = "unknown"

    def __init_subclass__(cls, status: str | None = None) -> None:
        cls.status = status or cls.status


class InvalidArgument(OutriderError, ValueError, status="invalid_argument"):
    """The call makes no sense, or a request has a field that is wrong: the text names it."""


class NotFound(OutriderError, LookupError, status="not_found"):
    """A file or tensor that should exist does not."""


class Malformed(OutriderError, status="malformed"):
    """Bytes of a file or of a peer that break their format."""


class Unsupported(OutriderError, status="unsupported"):
    """Well formed, but not something this build can do."""


class Mismatch(OutriderError, status="mismatch"):
    """Target and assistant, or two nodes, do not fit each other."""


class VersionMismatch(OutriderError, status="version_mismatch"):
    """The coordinator speaks another version of the protocol."""


class Timeout(OutriderError, TimeoutError, status="timeout"):
    """A session that rested for more than an hour."""


class PeerGone(OutriderError, ConnectionError, status="peer_gone"):
    """The coordinator or the verifier is not there any more."""


class OutOfRange(OutriderError, status="out_of_range"):
    """The context has no room for it."""


class Unavailable(OutriderError, status="unavailable"):
    """Not now: no verifier has joined, or all are busy."""


class Cancelled(OutriderError, status="cancelled"):
    """Somebody ended it."""


class IoError(OutriderError, OSError, status="io"):
    """The operating system said no, memory included."""


def error_of(status: str, message: str) -> OutriderError:
    """The error of this kind. An unknown status is a plain OutriderError."""
    kinds = {kind.status: kind for kind in OutriderError.__subclasses__()}
    return kinds.get(status, OutriderError)(message)
