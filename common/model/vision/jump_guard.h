#pragma once

#include <csetjmp>
#include <cstring>

namespace outrider {

/// For libraries that report errors by a call that must not return: it jumps out of the library instead. Frames between
/// must therefore have nothing to destroy.
class JumpGuard {
 public:
  /// @return true if the calls came to their end; else see message()
  template <typename Calls>
  bool guarded(const Calls& calls) {
    if (setjmp(jump_) != 0) return false;
    calls();
    return true;
  }
  /// To be called within guarded() only.
  [[noreturn]] void leave(const char* message) {
    if (message != message_) std::strncpy(message_, message, sizeof message_ - 1);
    std::longjmp(jump_, 1);
  }
  const char* message() const { return message_; }

 protected:
  char message_[256] = {};

 private:
  std::jmp_buf jump_;
};

}  // namespace outrider
