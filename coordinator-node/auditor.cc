#include "coordinator-node/auditor.h"

#include <algorithm>

#include <fmt/format.h>

namespace outrider {

void Auditor::add(Audit audit) {
  std::int64_t bytes = media_bytes(audit.request.media);
  for (const Audit& other : waiting_) bytes += media_bytes(other.request.media);
  if (waiting_.size() < kWaitingMax && bytes <= config_.media_bytes_max)
    waiting_.push_back(std::move(audit));
  else
    ++counts_.skipped;
}

const Audit* Auditor::next() const { return session_ || waiting_.empty() ? nullptr : &waiting_.front(); }

void Auditor::begin(SessionId session) {
  session_ = session;
  compared_ = 0;
  other_.clear();
}

void Auditor::skip(const std::string& why) {
  if (!std::exchange(reported_, true)) notices_.push_back({true, "audit: " + why});
  end(counts_.skipped);
}

void Auditor::end(std::int64_t& count) {
  ++count;
  waiting_.pop_front();
  session_.reset();
}

std::variant<std::monostate, Step, Cancel> Auditor::on_message(const Message& message) {
  if (message.session != session_) return {};
  if (const auto* tokens = std::get_if<Tokens>(&message.body)) return on_tokens(*tokens);
  const bool done = std::holds_alternative<Done>(message.body);
  if (done && compared_ == waiting_.front().answer.size()) {
    reported_ = false;
    counts_.tokens += static_cast<std::int64_t>(compared_);
    end(counts_.same);
  } else if (done || std::holds_alternative<Failed>(message.body)) {
    end(counts_.skipped);  // the verifier's context is shorter, it left, or another sequence took the place
  }
  return {};
}

std::variant<std::monostate, Step, Cancel> Auditor::on_tokens(const Tokens& tokens) {
  const Audit& audit = waiting_.front();
  if (!tokens.verifier_name.empty()) other_ = tokens.verifier_name;
  for (const TokenId token : tokens.tokens) {
    const TokenId wanted = audit.answer.at(compared_);
    if (token == wanted && ++compared_ > 0) continue;
    notices_.push_back({true, fmt::format("audit: token {} of an answer of {} is {} by verifier {} and {} by verifier "
                                          "{}, both of class '{}'; one of them is wrong",
                                          compared_ + 1, audit.answer.size(), wanted, audit.verifier, token, other_,
                                          audit.numeric_class)});
    end(counts_.different);
    return Cancel{};
  }
  const std::size_t left = audit.answer.size() - compared_;
  if (left == 0) return {};
  const std::size_t drafts = std::min(left - 1, static_cast<std::size_t>(kDraftLengthMax));
  const auto first = audit.answer.begin() + static_cast<std::ptrdiff_t>(compared_);
  return Step{.drafts = {first, first + static_cast<std::ptrdiff_t>(drafts)}};
}

}  // namespace outrider
