"""A pair of a target and its assistant, and one text of it step by step."""

from __future__ import annotations

import atexit
import base64
import contextlib
import difflib
import json
import operator
import os
import pathlib
import queue
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypedDict, Unpack

from ._answer import Answer, AnswerReader, Round
from ._library import Handle, Owner, call, ffi, lib, nano, text_or_null
from .errors import InvalidArgument, OutOfRange

#: One message of a conversation in OpenAI's form: `role`, `content`, and what docs/http.md lists besides.
Message: TypeAlias = Mapping[str, Any]
#: What is answered: a user's message, a conversation, or the ids of a whole prompt.
Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
#: Drafts of a round, 0 (plain decoding) to 32, or what `--draft-length` takes: "auto", "tree:8" (docs/policy.md).
DraftLength: TypeAlias = int | str


class Options(TypedDict, total=False):
    """How an answer is chosen. docs/http.md and docs/sampling.md say what each does; what is out of range is refused."""

    max_tokens: int  #: 256
    draft_length: DraftLength  #: "auto". Changes speed, never the text
    temperature: float  #: 0: greedily
    top_p: float  #: this and top_k: as the checkpoint's makers advise
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]  #: added to the scores of these ids
    min_tokens: int
    seed: int  #: random. One seed is one text, whatever is drafted
    stop: str | Sequence[str]  #: the answer ends before this text
    stop_token_ids: Sequence[int]  #: and with these ids, besides the model's own
    ignore_eos: bool  #: without the model's own
    logprobs: int  #: log-probabilities of each token and of so many others, 0 to 20
    json_schema: Mapping[str, Any]  #: the answer is JSON that it accepts
    regex: str
    choice: Sequence[str]
    grammar: str  #: GBNF
    tools: Sequence[Mapping[str, Any]]  #: of a conversation, in OpenAI's form; this and what follows
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    thinking: bool  #: think before the answer


_OF_CHATS = frozenset({"tools", "tool_choice", "parallel_tool_calls", "thinking"})
_FORMS = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def _encoded(file: str | os.PathLike[str] | bytes) -> str:
    """The base64 of a file, or of its bytes."""
    return base64.b64encode(file if isinstance(file, bytes) else pathlib.Path(file).read_bytes()).decode()


def picture(file: str | os.PathLike[str] | bytes, *, detail: Literal["auto", "low", "high"] = "auto") -> dict[str, Any]:
    """A part of a message's content: a picture from a PNG, JPEG or WebP file, or its bytes.

    pair.chat([{"role": "user", "content": [outrider.picture("photo.jpg"), {"type": "text", "text": "What is this?"}]}])
    detail: how closely it is looked at (docs/vision.md).
    """
    return {"type": "image_url", "image_url": {"url": "data:image/*;base64," + _encoded(file), "detail": detail}}


def video(file: str | os.PathLike[str] | bytes | Sequence[str | os.PathLike[str] | bytes]) -> dict[str, Any]:
    """A part of a message's content: a video from an MP4, Matroska, WebM or AVI file, or its bytes; or from pictures, one for every second.

    pair.chat([{"role": "user", "content": [outrider.video("film.mp4"), {"type": "text", "text": "What happens?"}]}])
    Its sound is not heard. Files want a program that was built with FFmpeg's libraries (docs/vision.md).
    """
    if isinstance(file, (str, os.PathLike, bytes)):
        return {"type": "video_url", "video_url": {"url": "data:video/*;base64," + _encoded(file)}}
    return {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64," + ",".join(map(_encoded, file))}}


def sound(file: str | os.PathLike[str] | bytes) -> dict[str, Any]:
    """A part of a message's content: a sound of at most 30 s from a WAV, FLAC, Ogg or MP3 file, or its bytes.

    pair.chat([{"role": "user", "content": [outrider.sound("call.wav"), {"type": "text", "text": "What is said?"}]}])
    """
    return {"type": "input_audio", "input_audio": {"data": _encoded(file)}}


def _ids_of(prompt: Prompt) -> list[int] | None:
    """The ids of a prompt that is made of them; None for text and messages."""
    if isinstance(prompt, str) or not len(prompt) or isinstance(prompt[0], Mapping):
        return None
    return [operator.index(token) for token in prompt]  # type: ignore[arg-type]  # mypy does not narrow by an element


def _prompt_fields(prompt: Prompt, raw: bool) -> dict[str, Any]:
    """The fields of a request that say what is answered."""
    if isinstance(prompt, str):
        return {"prompt": prompt} if raw else {"messages": [{"role": "user", "content": prompt}]}
    if raw:
        raise TypeError("raw is for text: ids are taken as they are, and messages are not")
    ids = _ids_of(prompt)
    return {"messages": list(prompt)} if ids is None else {"prompt": ids}


def _request(prompt: Prompt, raw: bool, options: Options) -> tuple[str, dict[str, Any]]:
    """The path and body of a streamed request (docs/http.md)."""
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 256, **options}
    known = list(Options.__annotations__)
    for unknown in sorted(fields.keys() - set(known)):
        if near := difflib.get_close_matches(unknown, known, 1):
            raise TypeError(f"no option {unknown}; the nearest is {near[0]}")
        raise TypeError(f"no option {unknown}; there are {', '.join(known)}")
    body = _prompt_fields(prompt, raw)
    chat = "messages" in body
    if not chat and (only := _OF_CHATS & fields.keys()):
        raise TypeError(f"{', '.join(sorted(only))}: only for a conversation")
    body["speculative"] = {"draft_length": fields.pop("draft_length", "auto"), "report_rounds": True}
    if fields.pop("thinking", False):
        body["chat_template_kwargs"] = {"enable_thinking": True}
    if forms := {form: fields.pop(name) for name, form in _FORMS.items() if name in fields}:
        body["structured_outputs"] = forms
    if chat and "logprobs" in fields:
        fields |= {"logprobs": True, "top_logprobs": fields["logprobs"]}
    body |= fields | {"stream": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
    return "/v1/chat/completions" if chat else "/v1/completions", body


class _Reply:
    """What a request's callback hands over, to the thread that reads it or to nobody any more."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[dict[str, Any] | BaseException | None] = queue.SimpleQueue()
        self.stopped = False
        self.thread = threading.current_thread()  #: that asks
        self._user = ffi.new_handle(self)

    def post(self, using: contextlib.ExitStack, pointer: Any, path: str, body: bytes) -> None:
        """Asks, and puts each event into the queue; then None, or why there are no more.

        using: what keeps the pair `pointer` open; it is given back at the end.
        """
        end: BaseException | None = None
        try:
            with using:
                call(lib.outrider_post, pointer, path.encode(), body, len(body), _ON_REPLY, self._user)
        except BaseException as error:  # all of it is for the reader
            end = error
        self.events.put(end)

    def take(self, event: bytes) -> int:
        """One event. Returns other than 0 to end the request."""
        self.events.put(json.loads(event))
        return int(self.stopped)

    def stop(self) -> None:
        """Ends the request soon, also before its first event."""
        self.stopped = True
        lib.outrider_stop(self._user)

    def close(self) -> None:
        """Ends the request, and waits until nobody works at it any more."""
        self.stopped = True
        while self.thread.is_alive():
            self.stop()  # again: the request may have been about to begin
            self.thread.join(0.1)


_streams: weakref.WeakSet[_Reply] = weakref.WeakSet()


def _stop_streams() -> None:
    for reply in list(_streams):
        reply.close()


# A program that leaves a stream ends: before the interpreter waits for threads, if this version can say so.
getattr(threading, "_register_atexit", atexit.register)(_stop_streams)


def _on_reply(user: Any, text: Any, size: int) -> int:
    reply: _Reply = ffi.from_handle(user)
    return reply.take(bytes(ffi.buffer(text, size)))


_ON_REPLY: Any = ffi.callback("outrider_on_reply", _on_reply)


class Stream:
    """An answer as it comes: iterate over the pieces of its text. Use it in one thread.

    `answer` is there after the last piece. As a context manager, or with close(), it ends the answer where it is.
    """

    def __init__(self, pair: Handle, prompt: Prompt, raw: bool, options: Options) -> None:
        path, body = _request(prompt, raw, options)
        self._reader = AnswerReader(options.get("logprobs"))
        self._reply = _Reply()
        self._answer: Answer | None = None
        using = contextlib.ExitStack()
        pointer = using.enter_context(pair.use())  # says so here if it is closed
        self._reply.thread = threading.Thread(
            target=self._reply.post, args=(using, pointer, path, json.dumps(body).encode())
        )
        self._reply.thread.start()
        self._finalizer = weakref.finalize(self, self._reply.stop)
        _streams.add(self._reply)

    @property
    def tokens(self) -> list[int]:
        """The ids so far."""
        return self._reader.tokens

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far."""
        return self._reader.rounds

    @property
    def answer(self) -> Answer:
        """The whole answer. Raises InvalidArgument before the last piece has been read."""
        if self._answer is None:
            raise InvalidArgument("the answer has not come to its end")
        return self._answer

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """The next piece of text, never empty. Raises the OutriderError that ended the answer."""
        while not self._reply.stopped:
            event = self._reply.events.get()
            if isinstance(event, BaseException):
                self.close()
                raise event
            if event is None:
                self._answer = self._reader.answer()
                self.close()
            elif text := self._reader.take(event):
                return text
        raise StopIteration

    def close(self) -> None:
        """Ends the answer, if it has not ended, and waits until nobody works at it any more."""
        self._reply.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Pair(Owner):
    """A target and its assistant, ready to write text. Any thread, several at a time.

    A context manager. close() ends it; what is under way in other threads, and open sessions, come to their ends first.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        backbone: str | os.PathLike[str] | None = None,
        assistant: str | os.PathLike[str] | None = None,
        draft_model: str | os.PathLike[str] | None = None,
        dtype: str | None = None,
        threads: int = 0,
    ) -> None:
        """Loads a pair into this process.

        model: what `outrider run --model` takes: a pair's directory, a Hugging Face directory with its assistant beside
        it, a .gguf file, a pack, or a name like "google/gemma-4-E4B-it", which is downloaded once. None: the nano pair
        that comes with Outrider.
        backbone, assistant: instead of `model`, the two by themselves; no assistant: plain decoding.
        draft_model: beside `model`, what drafts instead of its assistant, as of `outrider run --draft-model`: a smaller
        model, a pair (a cascade) or a block or EAGLE-3 drafter (docs/drafters.md).
        dtype: "f32", "bf16", "int8", "int4" or "q4"; None: as `outrider run` without --dtype, a pack's own, else what suits the
        file and the memory. threads: of the target's forward pass; 0: the fastest number, by measurement.
        Raises NotFound, Malformed, Unsupported or Mismatch for files that cannot be used.
        """
        if model is not None and backbone is not None or backbone is None and assistant is not None:
            raise TypeError("give a model, or a backbone and perhaps its assistant")
        if backbone is not None and draft_model is not None:
            raise TypeError("draft_model is for a model: give the backbone as one")
        pair = ffi.new("outrider_pair**")
        kind = text_or_null(dtype)
        if backbone is None:
            target = text_or_null(nano() if model is None else model)
            call(lib.outrider_open_model, target, text_or_null(draft_model), kind, threads, pair)
        else:
            call(lib.pair_open_local, text_or_null(backbone), text_or_null(assistant), kind, threads, pair)
        self._own(pair[0], lib.pair_close, "pair")

    @classmethod
    def connect(cls, address: str, model: str | os.PathLike[str] | None = None) -> Self:
        """The pair of a running coordinator (`outrider coordinator`), tcp://HOST:PORT, several with commas between.

        model: where its target's tokenizer and configs are (its weights are not read); None: the nano pair.
        Raises PeerGone when nobody answers within 3 s.
        """
        path = pathlib.Path(nano() if model is None else model)
        backbone = path / "backbone"
        pair = ffi.new("outrider_pair**")
        call(lib.pair_open_remote, address.encode(), text_or_null(backbone if backbone.exists() else path), pair)
        self = cls.__new__(cls)
        self._own(pair[0], lib.pair_close, "pair")
        return self

    # ---- answers ----

    def stream(self, prompt: Prompt, *, raw: bool = False, **options: Unpack[Options]) -> Stream:
        """Answers a prompt as it comes.

        prompt: a text is a user's message, or with `raw` the beginning that the model goes on with; a list of messages is
        a conversation; a list of ids is a whole prompt (encode() makes one).
        """
        return Stream(self._handle, prompt, raw, options)

    def generate(self, prompt: Prompt, *, raw: bool = False, **options: Unpack[Options]) -> Answer:
        """stream(), to its end. Greedy and 256 tokens at most, unless `options` say otherwise.

        Raises InvalidArgument for an option that is out of range, OutOfRange for a prompt that the context has no room
        for, Unavailable and PeerGone where a cluster fails.
        """
        with self.stream(prompt, raw=raw, **options) as stream:
            for _ in stream:
                pass
            return stream.answer

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Answer:
        """Answers a conversation. `answer.message` is what to append to it before the next turn."""
        return self.generate(list(messages), **options)

    # ---- text and ids ----

    def encode(self, prompt: str | Sequence[Message], *, raw: bool = False, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The ids of a prompt, <bos> included: what generate() would answer. `raw`: as there."""
        fields = _prompt_fields(prompt, raw) | ({"tools": list(tools)} if tools else {})
        tokens: list[int] = self._ask("/tokenize", fields)["tokens"]
        return tokens

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, with control tokens if `special`."""
        text: str = self._ask("/detokenize", {"tokens": list(tokens)})["prompt"] if special else self._plain_text(tokens)
        return text

    def _plain_text(self, tokens: Sequence[int]) -> str:
        ids, size = ffi.new("int32_t[]", list(tokens)), ffi.new("size_t*")
        capacity = 64 * len(tokens) + 1
        while True:
            text = ffi.new("char[]", capacity)
            with self._handle.use() as pointer:
                try:
                    call(lib.outrider_decode_tokens, pointer, ids, len(tokens), text, capacity, size)
                    return bytes(ffi.buffer(text, size[0])).decode()
                except OutOfRange:
                    capacity = size[0] + 1

    def is_stop(self, token: int) -> bool:
        """Whether the model has nothing more to say after this token."""
        with self._handle.use() as pointer:
            return bool(lib.outrider_is_stop_token(pointer, token))

    def _ask(self, path: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request with one reply."""
        reply = _Reply()
        using = contextlib.ExitStack()
        reply.post(using, using.enter_context(self._handle.use()), path, json.dumps(fields).encode())
        event = reply.events.get()
        if isinstance(event, BaseException):
            raise event
        assert event is not None, "a reply, or an error"
        return event

    # ---- step by step ----

    def session(self) -> Session:
        """A text whose rounds are the caller's."""
        session = ffi.new("outrider_session**")
        with self._handle.use() as pointer:
            call(lib.pair_session_open, pointer, session)
        return Session(self, session[0])


@dataclass(frozen=True)
class Verdict:
    """What the target made of some drafts."""

    drafts: list[int]
    accepted: int  #: how many of them, from the first on, it would have chosen itself
    next_token: int  #: its own, after these

    @property
    def tokens(self) -> list[int]:
        """What the text grew by."""
        return [*self.drafts[: self.accepted], self.next_token]


class Session(Owner):
    """One text of a pair, decoded greedily, step by step: prefill(), then round() or draft() and verify(), or decode().

    Whatever is verified, the text is that of plain decoding. A stop token ends nothing here: look for it with
    Pair.is_stop(). Any thread, one at a time (others wait). A context manager; it keeps its pair open.

    A step that fails ends the text until the next prefill(), except by InvalidArgument, which leaves it as it was.
    """

    def __init__(self, pair: Pair, pointer: Any) -> None:
        self._pair = pair
        self._own(pointer, lib.pair_session_close, "session")
        self._lock = threading.Lock()
        self.tokens: list[int] = []  #: the text since prefill(), without its prompt

    def _step(self, function: Any, *arguments: Any) -> None:
        with self._lock, self._handle.use() as pointer:
            call(function, pointer, *arguments)

    def prefill(self, prompt: Prompt) -> int:
        """Starts a text; the one there was ends. Returns the token that follows the prompt."""
        ids = _ids_of(prompt)
        first = ffi.new("int32_t*")
        self.tokens = []
        if ids is None:
            body = json.dumps(_prompt_fields(prompt, False)).encode()
            self._step(lib.outrider_prefill_chat, body, len(body), first)
        else:
            self._step(lib.pair_prefill, ffi.new("int32_t[]", ids), len(ids), first)
        self.tokens = [first[0]]
        return self.tokens[0]

    def draft(self, count: int) -> list[int]:
        """The assistant's candidates for the next tokens, 1 to 32 wanted. Changes no text.

        None come without an assistant, when it was late, and where the context ends. A second call before the text grows
        gives the same ones.
        """
        drafts, drafted = ffi.new("int32_t[]", max(count, 1)), ffi.new("size_t*")
        self._step(lib.pair_draft_tokens, count, drafts, drafted)
        return list(drafts[0 : drafted[0]])

    def verify(self, drafts: Sequence[int]) -> Verdict:
        """One pass of the target over drafts, 0 to 32, the assistant's or anybody's. The text grows by the verdict's tokens."""
        accepted, token = ffi.new("size_t*"), ffi.new("int32_t*")
        self._step(lib.pair_verify_tokens, ffi.new("int32_t[]", list(drafts)), len(drafts), accepted, token)
        verdict = Verdict(list(drafts), accepted[0], token[0])
        self.tokens += verdict.tokens
        return verdict

    def decode(self) -> int:
        """The next token, by plain decoding."""
        token = ffi.new("int32_t*")
        self._step(lib.pair_decode_one, token)
        self.tokens.append(token[0])
        return self.tokens[-1]

    def round(self, draft_length: int) -> Verdict:
        """One round: as many drafts as the assistant has, `draft_length` at most, and the target's verdict."""
        return self.verify(self.draft(draft_length) if draft_length > 0 else [])
