"""Outrider in Python: speculative decoding of Gemma 4 with a pair of a target and its assistant.

    import outrider
    print(outrider.Pair().generate("Write a short story about a fox.").text)

docs/python.md is the guide. Everything is in this module; what begins with an underscore is not for others.
"""

from ._answer import Answer, Round, Statistics, TokenLogprob
from ._library import nano
from ._pair import DraftLength, Message, Options, Pair, Prompt, Session, Stream, Verdict, picture, sound, video
from .errors import (
    Cancelled,
    InvalidArgument,
    IoError,
    Malformed,
    Mismatch,
    NotFound,
    OutOfRange,
    OutriderError,
    PeerGone,
    Timeout,
    Unavailable,
    Unsupported,
    VersionMismatch,
)

__all__ = [
    "Answer", "Cancelled", "DraftLength", "InvalidArgument", "IoError", "Malformed", "Message", "Mismatch", "NotFound", "Options",
    "OutOfRange", "OutriderError", "Pair", "PeerGone", "Prompt", "Round", "Session", "Statistics", "Stream", "Timeout",
    "TokenLogprob", "Unavailable", "Unsupported", "Verdict", "VersionMismatch", "nano", "picture", "sound", "video",
]
