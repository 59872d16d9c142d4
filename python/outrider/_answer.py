"""What an answer is made of, and how it is read from the events of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Round:
    """One round: drafts, of which the target kept the first `accepted`, and a token of its own.

    The first round of an answer has no drafts and no times: its token comes from the prompt's own pass.
    """

    drafts: list[int]  #: ids, [0, draft length]; rejected ones too
    accepted: int  #: how many of them the target kept
    tokens: list[int]  #: what the round added: accepted drafts, then the target's token
    source: str | None  #: "assistant", "ngram" or "table"; None for the first
    draft_ms: float = 0.0  #: making the drafts
    verify_ms: float = 0.0  #: the target's pass over them
    round_ms: float = 0.0  #: from the round's begin to its verdict


@dataclass(frozen=True)
class TokenLogprob:
    """What the model itself thought of one emitted token: natural logarithms, before penalties and temperature."""

    token: int
    logprob: float
    top: dict[int, float]  #: the `logprobs` most probable ids, the best first


@dataclass(frozen=True)
class Statistics:
    """What an answer took."""

    rounds: int  #: passes of the target after the prompt's
    drafted: int  #: drafts that the target looked at
    accepted: int  #: of these, those that it kept
    accepted_per_position: list[int]  #: how many first, second, ... drafts of a round it kept
    prompt_seconds: float  #: to the first token, waiting for a place included
    decode_seconds: float  #: from the first token to the last
    tokens_per_second: float  #: of decoding: tokens after the first per decode_seconds; 0 for a single one
    counts: Mapping[str, Any] = field(repr=False)  #: every count of the request, as `outrider run --json` names it

    @property
    def acceptance(self) -> float:
        """The share of drafts that were kept, 0 to 1; 0 where there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, repr=False)
class Answer:
    """A whole answer."""

    text: str  #: without thought and control tokens
    tokens: list[int]  #: all of it, stop token included
    prompt: list[int]  #: the ids that it answers, <bos> included
    finish_reason: str  #: "stop", "length" or "tool_calls"
    reasoning: str  #: the thought, if it was asked to think
    tool_calls: list[dict[str, Any]]  #: in OpenAI's form; `arguments` is the text of a JSON object
    logprobs: list[TokenLogprob] | None  #: of each token, where they were asked for
    rounds: list[Round]  #: in their order; their tokens joined are `tokens`
    statistics: Statistics

    def __repr__(self) -> str:
        """What a person wants to see of it; `rounds` and the ids are there to be asked for."""
        made = self.statistics
        return (
            f"Answer({self.text!r}, finish_reason={self.finish_reason!r}, {len(self.tokens)} tokens, "
            f"{made.tokens_per_second:.1f} tokens/s, {made.accepted} of {made.drafted} drafts kept)"
        )

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the message that goes into a conversation's history."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


def _id(name: str) -> int:
    return int(name.removeprefix("token_id:"))


def _logprobs(entry: Mapping[str, Any], top: int) -> list[TokenLogprob]:
    """Those of one event, in the form of chats or in that of completions."""
    if "content" in entry:
        return [
            TokenLogprob(_id(one["token"]), one["logprob"], {_id(t["token"]): t["logprob"] for t in one["top_logprobs"]})
            for one in entry["content"]
        ]
    scores = []
    for name, logprob, others in zip(entry["tokens"], entry["token_logprobs"], entry["top_logprobs"], strict=True):
        best = sorted(others.items(), key=lambda item: -item[1])[:top]  # the token itself may be one more
        scores.append(TokenLogprob(_id(name), logprob, {_id(other): score for other, score in best}))
    return scores


class AnswerReader:
    """Collects a stream's events into an Answer."""

    def __init__(self, logprobs: int | None) -> None:
        self.tokens: list[int] = []
        self.rounds: list[Round] = []
        self._prompt: list[int] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._top = logprobs
        self._scores: list[TokenLogprob] = []
        self._finish = ""
        self._last: Mapping[str, Any] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Takes one event. Returns the text that it adds to the answer, perhaps none."""
        choice = event["choices"][0]
        if "outrider_round" in event:
            self._take_round(event["outrider_round"])
        self._prompt = event.get("prompt_token_ids") or choice.get("prompt_token_ids") or self._prompt
        self.tokens += choice.get("token_ids") or []
        if self._top is not None and choice["logprobs"]:
            self._scores += _logprobs(choice["logprobs"], self._top)
        delta = choice["delta"] if "delta" in choice else {"content": choice["text"]}
        self._reasoning.append(delta.get("reasoning") or "")
        for call in delta.get("tool_calls") or []:
            self._calls.append({key: value for key, value in call.items() if key != "index"})
        if choice["finish_reason"]:
            self._finish, self._last = choice["finish_reason"], event
        text: str = delta.get("content") or ""
        self._text.append(text)
        return text

    def _take_round(self, made: Mapping[str, Any]) -> None:
        times = {key: made[key] for key in ("draft_ms", "verify_ms", "round_ms") if key in made}
        self.rounds.append(Round(made["draft_ids"], made["accepted"], made["token_ids"], made["source"], **times))

    def answer(self) -> Answer:
        """The answer, once its last event has been taken."""
        return Answer(
            text="".join(self._text),
            tokens=self.tokens,
            prompt=self._prompt,
            finish_reason=self._finish,
            reasoning="".join(self._reasoning),
            tool_calls=self._calls,
            logprobs=self._scores if self._top is not None else None,
            rounds=self.rounds,
            statistics=self._statistics(),
        )

    def _statistics(self) -> Statistics:
        counts = self._last["speculative"]
        decode = counts["decode_ms"] / 1e3
        return Statistics(
            rounds=counts["rounds"],
            drafted=counts["drafted_tokens"],
            accepted=counts["accepted_tokens"],
            accepted_per_position=counts["accepted_per_position"],
            prompt_seconds=counts["prefill_ms"] / 1e3,
            decode_seconds=decode,
            tokens_per_second=(len(self.tokens) - 1) / decode if decode > 0 else 0.0,
            counts=counts,
        )
