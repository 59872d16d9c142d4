#include "coordinator-node/policy_state.h"

#include <system_error>

#include "common/base/durable_file.h"
#include "common/base/files.h"
#include "common/logging/logging.h"

namespace outrider {

Result<PolicyState> PolicyState::open(const std::filesystem::path& path, Policies& policies, TimePoint now) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    ASSIGN_OR_RETURN(const std::string text, read_text(path));
    // What a machine's crash may leave of a file that was being written.
    if (auto loaded = text.empty() ? Result<void>() : policies.load(text); !loaded)
      return Error(loaded.error().code, "{}: {}", path.string(), loaded.error().message);
  }
  PolicyState state;
  state.path_ = path;
  state.due_ = now + kInterval;
  RETURN_IF_ERROR(state.save(policies));
  return state;
}

Result<void> PolicyState::save(const Policies& policies) {
  std::string text = policies.save();
  if (text == saved_) return {};
  RETURN_IF_ERROR(replace_text(path_, text));
  saved_ = std::move(text);
  return {};
}

void PolicyState::save_when_due(const Policies& policies, TimePoint now) {
  if (now < due_) return;
  due_ = now + kInterval;
  if (const auto saved = save(policies); !saved)
    log_warn("event=policy_state_not_saved reason=\"{}\"", saved.error().message);
}

}  // namespace outrider
