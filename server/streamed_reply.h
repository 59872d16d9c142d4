#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "server/http_message.h"
#include "server/reply_writer.h"

namespace outrider {

/// A reply made on its own thread while the connection's thread sends it, so that a slow or absent reader does not
/// delay the conversation with the coordinator. A reader with more than kUnreadBytesMax unread bytes at the next piece
/// counts as gone.
class StreamedReply {
 public:
  using Emit = std::function<void(std::string piece)>;
  /// @param job  emits pieces until it ends, or soon after `gone` returns true @return the error that ended it
  using Job = std::function<std::optional<ApiError>(const Emit& emit, const std::function<bool()>& gone)>;

  StreamedReply(Job job, std::shared_ptr<ReplyWriter> writer, const HttpRequest& http);
  ~StreamedReply() { dropped_ = true; }

  /// Waits for the first piece. @return the error, if it came instead
  std::optional<ApiError> wait_for_first();
  /// See HttpReply::next.
  std::optional<std::string> next();

 private:
  /// Maximum unread bytes of a reply before its latest piece. Only answers with log-probabilities can exceed this.
  static constexpr std::size_t kUnreadBytesMax = 8u << 20;

  void run(const Job& job);
  void push(std::string piece);

  const std::shared_ptr<ReplyWriter> writer_;
  const std::string request_id_, path_;
  const std::function<bool()> gone_;
  std::atomic<bool> dropped_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> pieces_;
  std::size_t unread_ = 0;  ///< their bytes
  std::optional<ApiError> error_;
  bool emitted_ = false, ended_ = false;
  bool overrun_ = false;  ///< more than kUnreadBytesMax
  std::jthread thread_;   // last: it uses the others
};

}  // namespace outrider
