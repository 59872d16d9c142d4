"""What can go wrong. Every error of the library is an OutriderError; its class says of what kind."""

from __future__ import annotations


class OutriderError(Exception):
    """A call failed; the text is one line for people. `status` is the stable name of its kind."""

    status = "unknown"


class InvalidArgument(OutriderError, ValueError):
    """The call makes no sense, or a request has a field that is wrong: the text names it."""

    status = "invalid_argument"


class NotFound(OutriderError, LookupError):
    """A file or tensor that should exist does not."""

    status = "not_found"


class Malformed(OutriderError):
    """Bytes of a file or of a peer that break their format."""

    status = "malformed"


class Unsupported(OutriderError):
    """Well formed, but not something this build can do."""

    status = "unsupported"


class Mismatch(OutriderError):
    """Target and assistant, or two nodes, do not fit each other."""

    status = "mismatch"


class VersionMismatch(OutriderError):
    """The coordinator speaks another version of the protocol."""

    status = "version_mismatch"


class Timeout(OutriderError, TimeoutError):
    """A session that rested for more than an hour."""

    status = "timeout"


class PeerGone(OutriderError, ConnectionError):
    """The coordinator or the verifier is not there any more."""

    status = "peer_gone"


class OutOfRange(OutriderError):
    """The context has no room for it."""

    status = "out_of_range"


class Unavailable(OutriderError):
    """Not now: no verifier has joined, or all are busy."""

    status = "unavailable"


class Cancelled(OutriderError):
    """Somebody ended it."""

    status = "cancelled"


class IoError(OutriderError, OSError):
    """The operating system said no, memory included."""

    status = "io"


def _kinds(base: type[OutriderError]) -> dict[str, type[OutriderError]]:
    return {kind.status: kind for kind in base.__subclasses__()}


def error_of(status: str, message: str) -> OutriderError:
    """The error of this kind. An unknown status is a plain OutriderError."""
    return _kinds(OutriderError).get(status, OutriderError)(message)
