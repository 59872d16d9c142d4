#include "server/response_store.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/base/json_fields.h"
#include "common/os/logging.h"

namespace outrider {
namespace {
using Json = nlohmann::json;

constexpr Duration kClientLook = std::chrono::milliseconds(100);  ///< between checks that the client still waits

}  // namespace

void ResponseStore::put(const std::string& id, const std::string& owner, std::string kept, TimePoint time) {
  constexpr std::size_t kBytesOfOne = kBytesMax / kCountMax;  // so that many small ones count as much as a large one
  const std::lock_guard lock(mutex_);
  bytes_ += kept.size();
  entries_.push_back({id, owner, std::move(kept), time});
  while (entries_.front().since + kAgeMax < time) drop(entries_.begin());
  while (entries_.size() > kCountMax || bytes_ > kBytesMax) {
    std::map<std::string_view, std::size_t> shares;
    for (const Entry& entry : entries_) shares[entry.owner] += entry.kept.size() + kBytesOfOne;
    const auto largest = std::ranges::max_element(shares, {}, [](const auto& share) { return share.second; });
    drop(std::ranges::find(entries_, largest->first, &Entry::owner));
  }
}

ResponseStore::Entries::const_iterator ResponseStore::find(const std::string& id, const std::string& owner) const {
  return std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.id == id && entry.owner == owner; });
}

void ResponseStore::drop(Entries::const_iterator entry) {
  bytes_ -= entry->kept.size();
  entries_.erase(entry);
}

bool ResponseStore::forget(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  const auto known = find(id, owner);
  const bool there = known != entries_.end();
  if (there) drop(known);
  return there;
}

std::string ResponseStore::text(const std::string& id, const std::string& owner, TimePoint time) const {
  const std::lock_guard lock(mutex_);
  const auto known = find(id, owner);
  return known != entries_.end() && known->since + kAgeMax >= time ? known->kept : "";
}

BackgroundResponses::~BackgroundResponses() {
  for (const auto& job : jobs_) job->cancelled = true;  // none of them begins any more
  jobs_.clear();
}

std::optional<HttpReply> BackgroundResponses::begin(const std::string& id, HttpRequest http, Json response,
                                                    HttpHandler chat, Finish finish) {
  std::unique_lock lock(mutex_);
  std::erase_if(jobs_, [](const auto& job) { return job->state == State::kOver; });
  if (!places_.take(http.client, 1))
    return error_reply({429, "too many responses are being made in the background: wait for some of them"});
  const auto job = std::make_shared<Job>();
  job->id = id;
  job->owner = http.owner();
  job->client = http.client;
  job->response = std::move(response);
  job->finish = std::move(finish);
  const std::function<bool()> gone = http.gone;
  http.gone = [&job = *job, ends = http.server_ends] { return job.cancelled || ends(); };
  http.admitted = [this, &job = *job] {
    const std::lock_guard admitted(mutex_);
    job.state = State::kMaking;
    changed_.notify_all();
  };
  try {
    job->thread =
        std::jthread([this, &job = *job, http = std::move(http), chat = std::move(chat)] { run(job, http, chat); });
  } catch (const std::system_error& error) {
    places_.give_back(job->client, 1);
    log_warn("event=no_thread reason=\"{}\"", error.what());
    return error_reply({503, "too many threads"});
  }
  jobs_.push_back(job);
  while (!changed_.wait_for(lock, kClientLook, [&] { return job->state != State::kPreparing; }))
    if (gone()) job->cancelled = true;
  return std::exchange(job->refusal, {});
}

void BackgroundResponses::run(Job& job, const HttpRequest& http, const HttpHandler& chat) {
  HttpReply reply = answer_with(chat, http);
  const std::lock_guard lock(mutex_);
  if (job.state == State::kPreparing)
    job.refusal = std::move(reply);
  else if (!job.cancelled)
    store_.put(job.id, job.owner, job.finish(reply));
  job.state = State::kOver;
  places_.give_back(job.client, 1);
  changed_.notify_all();
}

BackgroundResponses::Job* BackgroundResponses::find(const std::string& id, const std::string& owner) const {
  const auto found = std::ranges::find_if(jobs_, [&](const auto& job) {
    return job->id == id && job->owner == owner && job->state == State::kMaking && !job->cancelled;
  });
  return found == jobs_.end() ? nullptr : found->get();
}

Json BackgroundResponses::get(const std::string& id, const std::string& owner) const {
  const std::lock_guard lock(mutex_);
  const Job* const job = find(id, owner);
  return job == nullptr ? Json() : job->response;
}

Json BackgroundResponses::cancel(const std::string& id, const std::string& owner) {
  const std::lock_guard lock(mutex_);
  Job* const job = find(id, owner);
  if (job == nullptr) return {};
  job->cancelled = true;
  job->response["status"] = "cancelled";
  store_.put(id, owner, to_text({{"response", job->response}}));
  return job->response;
}

}  // namespace outrider
