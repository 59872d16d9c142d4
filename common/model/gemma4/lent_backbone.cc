#include "common/model/gemma4/lent_backbone.h"

#include <chrono>

namespace outrider {

void LentBackbone::lend(std::shared_ptr<Backbone> backbone) {
  const std::lock_guard lock(mutex_);
  backbone_ = std::move(backbone);
  changed_.notify_all();
}

void LentBackbone::take(const std::function<void()>& meanwhile) {
  std::unique_lock lock(mutex_);
  taken_ = true;
  while (!changed_.wait_for(lock, std::chrono::milliseconds(2), [&] { return !in_pass_; })) {
    lock.unlock();
    meanwhile();
    lock.lock();
  }
}

void LentBackbone::give() {
  const std::lock_guard lock(mutex_);
  taken_ = false;
}

bool LentBackbone::wait(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  return changed_.wait(lock, std::move(stop), [&] { return backbone_ != nullptr; });
}

bool LentBackbone::begin() {
  const std::lock_guard lock(mutex_);
  return in_pass_ = !taken_;
}

void LentBackbone::end() {
  const std::lock_guard lock(mutex_);
  in_pass_ = false;
  changed_.notify_all();
}

}  // namespace outrider
