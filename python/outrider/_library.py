"""liboutrider.so, as outrider.h declares it: found, loaded, and called with errors as exceptions."""

from __future__ import annotations

import os
import pathlib
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import cffi

from .errors import NotFound, OutriderError, error_of

_HERE = pathlib.Path(__file__).parent


def beside(name: str, in_checkout: str) -> pathlib.Path:
    """A file that the wheel has beside these modules, and a checkout in its own place."""
    installed = _HERE / name
    return installed if installed.exists() else _HERE.parents[1] / in_checkout


def _declarations(header: str) -> str:
    """What cffi reads of a C header: everything but comments, C++ and directives; numbers that are defined stay."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^#(?!define \w+ \d+$).*$", "", text, flags=re.MULTILINE)


def _load() -> Any:
    path = os.environ.get("OUTRIDER_LIBRARY") or beside("liboutrider.so", "build/liboutrider.so")
    try:
        library: Any = ffi.dlopen(str(path))
    except OSError as error:
        raise ImportError(f"outrider: {path} cannot be loaded ({error}); OUTRIDER_LIBRARY names another") from error
    if library.outrider_abi_version() != library.OUTRIDER_ABI_VERSION:
        raise ImportError(f"outrider: {path} has ABI {library.outrider_abi_version()}, wanted {library.OUTRIDER_ABI_VERSION}")
    for name in dir(library):
        getattr(library, name)  # else cffi makes it at its first use, under a lock that the caller of a finalizer may hold
    return library


ffi: Any = cffi.FFI()
ffi.cdef(_declarations(beside("outrider.h", "embed/outrider.h").read_text(encoding="utf-8")))
lib: Any = _load()


def call(function: Any, *arguments: Any) -> str:
    """Calls a function of outrider.h, which gets an `outrider_error` as its last argument.

    Returns the note that a call may leave beside its success. Raises the OutriderError of its status.
    """
    error = ffi.new("outrider_error*")
    status = function(*arguments, error)
    message: str = ffi.string(error.message).decode(errors="replace")
    if status != lib.OUTRIDER_OK:
        raise error_of(ffi.string(lib.outrider_status_name(status)).decode(), message)
    return message


def text_or_null(text: str | os.PathLike[str] | None) -> Any:
    """A path or word as a char*; None as NULL."""
    return ffi.NULL if text is None else ffi.new("char[]", os.fsencode(text))


class Handle:
    """A pointer that is closed once, when nobody uses it any more. Any thread; not in a process forked since.

    The forked process lacks the threads behind the pointer, which closing would wait for.
    """

    def __init__(self, pointer: Any, close: Callable[[Any], None], what: str) -> None:
        self._pointer, self._close, self._what = pointer, close, what
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False
        self._process = os.getpid()

    @contextmanager
    def use(self) -> Iterator[Any]:
        """The pointer, which lives as long as the block. Raises OutriderError where it was closed before, or forked."""
        if self._process != os.getpid():
            raise OutriderError(f"the {self._what} is of the process that forked this one")
        with self._lock:
            if self._closed:
                raise OutriderError(f"the {self._what} is closed")
            self._users += 1
        try:
            yield self._pointer
        finally:
            self._leave()

    def close(self) -> None:
        """No use begins any more; the last that is under way takes the pointer with it."""
        if self._process != os.getpid():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._users += 1
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closed and self._users == 0
        if last:
            self._close(self._pointer)


class Owner:
    """What has a handle: closed with its block, with close(), or when nobody knows it any more."""

    def _own(self, pointer: Any, close: Callable[[Any], None], what: str) -> None:
        self._handle = Handle(pointer, close, what)
        self._finalizer = weakref.finalize(self, self._handle.close)

    def close(self) -> None:
        """Frees what it holds, once nobody uses it any more. A second time does nothing."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def nano() -> pathlib.Path:
    """The directory of the nano pair, which comes with Outrider. Raises NotFound where it was taken away."""
    path = beside("models/nano", "models/nano")
    if not path.exists():
        raise NotFound(f"{path} is not there")
    return path
