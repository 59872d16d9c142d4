#include "encoder-node/encoder_core.h"

#include <algorithm>

#include <fmt/format.h>

namespace outrider {
namespace {

std::int64_t bytes_of(const WireMedium& medium) { return std::ssize(medium.content.data.bytes()); }

}  // namespace

std::int64_t EncoderCore::Kept::bytes() const {
  return bytes_of(encode.medium) + bytes_of(soft) + std::ssize(encode.cache_scope);
}

EncoderCore::EncoderCore(const EncoderConfig& config, Hello hello)
    : config_(config), membership_(config.link, std::move(hello), {.sessions_max = config.sessions_max}) {}

void EncoderCore::on_message(Message message, TimePoint now) {
  const Membership::Event event = membership_.on_message(message, now);
  if (event == Membership::Event::kForgetSessions) {
    for (std::size_t i = queue_.size(); i-- > 0;) free(queue_[i].request.session);
  }
  if (event != Membership::Event::kSession) return;
  if (std::holds_alternative<Encode>(message.body)) return on_encode(std::move(message));
  if (std::holds_alternative<Free>(message.body)) return free(message.session);
  membership_.warn(fmt::format("an encoder has no use for '{}'; dropped", name_of(message)), message.session);
}

void EncoderCore::on_encode(Message message) {
  const auto same = [&](const Job& job) {
    return !job.dropped && job.request.session == message.session && job.request.round == message.round &&
           job.request.base == message.base;
  };
  if (std::ranges::any_of(queue_, same)) return membership_.answer(message, Heartbeat{});  // repeated: in work
  free(message.session);  // its earlier request is obsolete
  if (answer_from_kept(message)) return;
  const auto fail = [&](Errc code, std::string why) { membership_.answer(message, Failed{code, std::move(why)}); };
  const Result<SoftTokens> soft = config_.soft_tokens(std::get<Encode>(message.body).medium);
  if (!soft) return fail(soft.error().code, soft.error().message);
  if (std::ssize(queue_) >= config_.sessions_max) {
    return fail(Errc::kUnavailable,
                fmt::format("{} sessions, this encoder takes {}", queue_.size(), config_.sessions_max));
  }
  queue_.push_back({.request = std::move(message), .together = soft->together});
}

void EncoderCore::free(SessionId id) {
  // The one in work stays until the towers are done.
  if (out_ && queue_.front().request.session == id) queue_.front().dropped = true;
  const auto waiting = queue_.begin() + (out_ ? 1 : 0);
  queue_.erase(std::remove_if(waiting, queue_.end(), [&](const Job& job) { return job.request.session == id; }),
               queue_.end());
}

void EncoderCore::on_encoded(WireTensor content, Duration took) {
  CHECK(out_, "soft tokens of nothing");
  out_ = false;
  Job job = std::move(queue_.front());
  queue_.pop_front();
  Encode& encode = std::get<Encode>(job.request.body);
  WireMedium soft{.first = encode.medium.first, .content = std::move(content), .together = job.together};
  if (!job.dropped) membership_.answer(job.request, Encoded{soft, std::max(took, Duration::zero()).count()});
  keep(std::move(encode), std::move(soft));
}

bool EncoderCore::answer_from_kept(const Message& request) {
  const Encode& encode = std::get<Encode>(request.body);
  const auto found = std::ranges::find_if(kept_, [&](const Kept& kept) {
    return kept.encode.cache_scope == encode.cache_scope && kept.encode.medium.content == encode.medium.content;
  });
  if (found == kept_.end()) return false;
  kept_.splice(kept_.end(), kept_, found);
  WireMedium soft = found->soft;
  soft.first = encode.medium.first;
  membership_.answer(request, Encoded{std::move(soft)});
  return true;
}

void EncoderCore::keep(Encode encode, WireMedium soft) {
  kept_.push_back({std::move(encode), std::move(soft)});
  kept_bytes_ += kept_.back().bytes();
  while (kept_bytes_ > config_.kept_bytes_max) {
    kept_bytes_ -= kept_.front().bytes();
    kept_.pop_front();
  }
}

void EncoderCore::on_tick(TimePoint now) { membership_.on_tick(now); }

EncoderCore::Output EncoderCore::take_output() {
  // Several answers to one prompt request its media at once.
  while (!out_ && !queue_.empty() && answer_from_kept(queue_.front().request)) queue_.pop_front();
  Output output{membership_.take_output()};
  if (out_ || queue_.empty()) return output;
  out_ = true;
  output.work = queue_.front().encode().medium;
  return output;
}

}  // namespace outrider
