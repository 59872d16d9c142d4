#include "server/streamed_reply.h"

#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace outrider {

StreamedReply::StreamedReply(Job job, std::shared_ptr<ReplyWriter> writer, const HttpRequest& http)
    : writer_(std::move(writer)),
      request_id_(http.request_id),
      path_(http.path),
      gone_(http.gone),
      thread_([this, job = std::move(job)] { run(job); }) {}

std::optional<ApiError> StreamedReply::wait_for_first() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || !pieces_.empty(); });
  return pieces_.empty() ? error_ : std::nullopt;
}

std::optional<std::string> StreamedReply::next() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return ended_ || !pieces_.empty(); });
  if (pieces_.empty()) return ended_ ? std::nullopt : std::optional<std::string>("");
  std::string all;  // one write for all pieces so far
  for (const std::string& piece : std::exchange(pieces_, {})) all += piece;
  unread_ = 0;
  return all;
}

void StreamedReply::run(const Job& job) {
  std::optional<ApiError> error;
  try {
    const auto gone = [this] { return dropped_ || gone_(); };
    error = job([this](std::string piece) { push(std::move(piece)); }, gone);
  } catch (const std::exception& thrown) {
    error = internal_error(request_id_, path_, thrown);
  }
  const std::lock_guard lock(mutex_);
  if (overrun_)  // pieces are missing, even if the job has done its part
    error = ApiError{kClientGone, fmt::format("the client left {} bytes of the reply unread", kUnreadBytesMax)};
  if (emitted_ || !error) pieces_.push_back(writer_->end(error ? &*error : nullptr));
  error_ = std::move(error);
  ended_ = true;
  changed_.notify_all();
}

void StreamedReply::push(std::string piece) {
  if (piece.empty()) return;
  const std::lock_guard lock(mutex_);
  if (unread_ > kUnreadBytesMax) dropped_ = overrun_ = true;
  unread_ += piece.size();
  if (!dropped_) pieces_.push_back(std::move(piece));
  emitted_ = true;
  changed_.notify_all();
}

}  // namespace outrider
