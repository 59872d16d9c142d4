#include "coordinator-node/session/sequence.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace outrider {
namespace {

/// More than the input of 1,120 soft tokens of a picture, or of 30 s of a sound.
constexpr std::size_t kMediumBytesMax = 8u << 20;

Error refused(std::string why) { return {Errc::kInvalidArgument, std::move(why)}; }

/// Checks the shape of a picture or a sound.
Result<void> check_medium(const WireMedium& medium) {
  const WireTensor& content = medium.content;
  if (content.shape.size() == (medium.is_sound() ? 1 : 3) && (content.dtype == DType::kU8 || medium.is_sound()) &&
      content.data.bytes().size() <= kMediumBytesMax)
    return {};
  return refused(fmt::format(
      "{} bytes of {} [{}] are no picture, U8 [height, width, 3], and no sound, F32 [samples], of at most {} bytes",
      content.data.bytes().size(), to_string(content.dtype), fmt::join(content.shape, ", "), kMediumBytesMax));
}

/// Checks that a request's fields fit each other, whatever the model.
Result<void> check_request(const Generate& request) {
  if (!request.sampling.grammar.empty() && request.stop_ids.empty())
    return refused("a grammar without a stop token: the answer could not end with it");
  if (request.max_tokens < 1) return refused(fmt::format("max_tokens {}, wanted at least 1", request.max_tokens));
  if (!is_offered(request.policy))
    return refused(fmt::format("draft policy {}, wanted fixed, auto or tree", to_string(request.policy)));
  if (request.added.any() && (request.stepwise || request.draft_ahead.value_or(0) > 0 ||
                              (request.policy != DraftPolicy::kFixed && request.policy != DraftPolicy::kTree))) {
    return refused(
        "drafts of added sources want an answer of a fixed length or trees, without steps and drafts made ahead");
  }
  if (request.sampling.prompt_logprobs && (request.stepwise || !request.media.empty()))
    return refused("log-probabilities of the prompt want an answer without steps, pictures and sounds");
  return {};
}

}  // namespace

std::optional<TokenId> first_beyond(std::span<const TokenId> ids, std::int32_t vocab_size) {
  const auto found = std::ranges::find_if(ids, [&](TokenId id) { return id >= vocab_size; });
  return found == ids.end() ? std::nullopt : std::optional(*found);
}

Sequence::Sequence(Generate generate)
    : request(std::move(generate)),
      tokens(std::move(request.prompt)),
      prompt_size(std::ssize(tokens) - request.answered) {}

Position Sequence::positions(std::int64_t max_tokens) const {
  // The last token of an answer needs no K/V.
  return request.stepwise
             ? std::ssize(tokens)
             : prompt_size + std::min(max_tokens, std::numeric_limits<Position>::max() - prompt_size) - 1;
}

std::int64_t Sequence::prompt_bytes() const {
  return std::ssize(tokens) * std::int64_t{sizeof(TokenId)} + media_bytes(request.media);
}

Result<void> Sequence::check(const PairFacts* facts) const {
  if (prompt_size < 1) return refused("the prompt is empty, wanted at least one token");
  RETURN_IF_ERROR(check_request(request));
  for (const WireMedium& medium : std::span(request.media).subspan(encoded)) RETURN_IF_ERROR(check_medium(medium));
  if (facts == nullptr) return {};
  if (request.tokenizer_fingerprint != 0 && facts->tokenizer_fingerprint != 0 &&
      request.tokenizer_fingerprint != facts->tokenizer_fingerprint) {
    return Error(Errc::kMismatch, "tokenizer fingerprint: the model's is {:016x}, the client's {:016x}",
                 facts->tokenizer_fingerprint, request.tokenizer_fingerprint);
  }
  if (const auto token = first_beyond(tokens, facts->vocab_size))
    return refused(fmt::format("prompt token id {}, the vocabulary has {}", *token, facts->vocab_size));
  if (prompt_size + 1 > facts->context_max) {
    return Error(Errc::kOutOfRange, "the prompt has {} tokens, the context holds {} with the answer", prompt_size,
                 facts->context_max);
  }
  return check_sampling(request.sampling, facts->vocab_size);
}

Result<void> Sequence::check_resumed() const {
  if (tokens_left() < 1 || request.max_tokens > kPositions.max) {
    return refused(fmt::format("{} tokens of an answer of {}, wanted fewer, and at most {}", answered(),
                               request.max_tokens, kPositions.max));
  }
  if (const auto stop = std::ranges::find_first_of(answer(), request.stop_ids); stop != answer().end())
    return refused(fmt::format("an answer that goes on after its stop id {}", *stop));
  return {};
}

bool Sequence::append(std::vector<TokenId>& fresh) {
  const auto stop = std::ranges::find_first_of(fresh, request.stop_ids);
  const bool stopped = stop != fresh.end();
  if (stopped) fresh.erase(stop + 1, fresh.end());
  CHECK(std::ssize(fresh) <= tokens_left(), "{} tokens, {} left", fresh.size(), tokens_left());
  tokens.insert(tokens.end(), fresh.begin(), fresh.end());
  return stopped;
}

}  // namespace outrider
