// Downloads models into the cache in huggingface_hub's layout: blobs/ETAG, links to these in snapshots/COMMIT,
// refs/REVISION, and a lock for each blob in .locks. A partial blob is ETAG.incomplete, and is continued after an
// interruption.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/complain.h"
#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/base/time.h"
#include "common/http/http_client.h"
#include "common/hub/digest.h"
#include "common/hub/hub.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"
#include "common/os/progress.h"

namespace outrider {
namespace fs = std::filesystem;
namespace {
using nlohmann::json;

constexpr int kAtOnce = 8;    ///< concurrent files, as in huggingface_hub
constexpr int kTriesMax = 5;  ///< consecutive tries without any data
constexpr Duration kFirstWait = std::chrono::milliseconds(500), kWaitMax = std::chrono::minutes(5),
                   kSilenceMax = std::chrono::seconds(60), kPoll = std::chrono::milliseconds(100);

std::string size_text(std::uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  return bytes >= 1'000'000'000 ? fmt::format("{:.1f} GB", size / 1e9) : fmt::format("{:.1f} MB", size / 1e6);
}

std::string percent_encoded(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const bool plain = is_letter_or_digit(c) || std::string_view("-_.~/").find(c) != std::string_view::npos;
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

/// Receiver of a response's body.
struct Body {
  std::uint64_t have = 0, size_max = 0;
  /// Receives the next piece, for offset `have`. At 0 the body starts again.
  std::function<Result<void>(std::uint64_t have, std::string_view piece)> take;
};

/// Sends requests to the hub, and repeats them if it is busy or a connection breaks. Any thread.
class HubClient {
 public:
  HubClient(const HubSettings& hub, const HubName& name, HttpUrl endpoint)
      : hub_(hub), name_(name), endpoint_(std::move(endpoint)) {}

  /// @param target  below HF_ENDPOINT: "/api/..."
  Result<void> get(const std::string& target, Body& body, const Gone& gone) const {
    for (int failures = 0;;) {
      Duration wait = kFirstWait * (1 << failures);
      const std::uint64_t before = body.have;
      const Result<void> got = once(target, body, gone, wait);
      if (got) return {};
      const Errc why = got.error().code;
      if (body.have > before) failures = 0;
      if ((why != Errc::kIo && why != Errc::kTimeout && why != Errc::kUnavailable) || ++failures == kTriesMax ||
          wait > kWaitMax || gone())
        return got;
      for (const TimePoint end = now() + wait; now() < end && !gone();) std::this_thread::sleep_for(kPoll);
    }
  }

 private:
  Result<void> once(const std::string& target, Body& body, const Gone& gone, Duration& wait) const {
    HttpCall call{.url = endpoint_,
                  .addresses = {},
                  .headers = {{"User-Agent", "outrider"}, {"Accept-Encoding", "identity"}},
                  .silence_max = kSilenceMax,
                  .gone = gone};
    call.url.target = (endpoint_.target == "/" ? "" : endpoint_.target) + target;
    if (!hub_.token.empty()) call.headers.emplace_back("Authorization", "Bearer " + hub_.token);
    if (body.have > 0) call.headers.emplace_back("Range", fmt::format("bytes={}-", body.have));
    call.admit = [&](const HttpAnswer& head, std::int64_t) -> Result<std::int64_t> {
      if (head.status != 200 && head.status != 206) return refusal(head, wait);
      if (head.status == 200) body.have = 0;
      if (head.status == 206 && !head.header("content-range").starts_with(fmt::format("bytes {}-", body.have)))
        return Error(Errc::kMalformed, "sends '{}', wanted the bytes from {}", head.header("content-range"), body.have);
      return static_cast<std::int64_t>(body.size_max - body.have);
    };
    call.on_body = [&](std::string_view piece) -> Result<void> {
      RETURN_IF_ERROR(body.take(body.have, piece));
      body.have += piece.size();
      return {};
    };
    bool trusted = false;
    RETURN_IF_ERROR(
        follow_http(std::move(call), [&](const HttpUrl& place) { return addresses(place, trusted, gone); }));
    return {};
  }

  /// Returns the addresses of a redirection's target: none that only this machine or its network can reach, unless the
  /// hub itself is there. @param trusted  set to true if it is
  Result<std::vector<std::string>> addresses(const HttpUrl& place, bool& trusted, const Gone& gone) const {
    ASSIGN_OR_RETURN(std::vector<std::string> found, addresses_of(place.host, now() + kSilenceMax, gone));
    const bool all_public = std::ranges::all_of(found, [](const std::string& text) {
      const auto address = parse_ip_address(text);
      return address && is_public(*address);
    });
    if (place.server() == endpoint_.server())
      trusted = !all_public;
    else if (!all_public && !trusted)
      return Error{Errc::kInvalidArgument, "has an address that is not public, and the hub redirects to it"};
    return found;
  }

  /// @param wait  receives the time until another try is worthwhile
  Error refusal(const HttpAnswer& head, Duration& wait) const {
    const std::string page = hub_.endpoint + "/" + name_.repository;
    switch (head.status) {
      case 401:
        return {Errc::kNotFound, hub_.token.empty() ? "there is no such model, or not without a token (status 401): "
                                                      "HF_TOKEN, or `hf auth login`, says who asks"
                                                    : "there is no such model, or not for this token (status 401)"};
      case 403:
        return {Errc::kNotFound, "not for this token (status 403): its account has to accept the terms at " + page};
      case 404:
        return {Errc::kNotFound, head.header("x-error-code") == "RevisionNotFound"
                                     ? fmt::format("there is no revision '{}' (status 404)", name_.revision)
                                     : "there is no such model or file (status 404)"};
      default: break;
    }
    if (const auto seconds = to_number<std::int32_t>(head.header("retry-after")))
      wait = std::chrono::seconds(std::max(0, *seconds));
    const bool later = head.status == 429 || head.status >= 500;
    return {later ? Errc::kUnavailable : Errc::kIo, fmt::format("answers with status {}", head.status)};
  }

  const HubSettings& hub_;
  const HubName& name_;
  const HttpUrl endpoint_;
};

/// Downloads files of one commit into the cache.
class Download {
 public:
  Download(const HubClient& client, const HubSettings& hub, const HubName& name, const HubListing& repository)
      : client_(client),
        name_(name),
        repository_(repository),
        folder_(hub.cache / name.folder()),
        locks_(hub.cache / ".locks" / name.folder()) {}

  fs::path snapshot() const { return folder_ / "snapshots" / repository_.commit; }

  /// Returns the files of `names` that are missing. @return kNotFound for a file that the repository lacks
  Result<std::vector<HubFile>> missing(const std::vector<std::string>& names) const {
    std::vector<HubFile> files;
    std::error_code ignored;
    for (const std::string& name : names) {
      const auto found = repository_.files.find(name);
      if (found == repository_.files.end()) return Error(Errc::kNotFound, "there is no {}", name);
      if (!fs::exists(snapshot() / name, ignored)) files.push_back(found->second);
    }
    return files;
  }
  /// Returns the bytes of these files still to be downloaded.
  std::uint64_t left(const std::vector<HubFile>& files) const {
    std::uint64_t bytes = 0;
    for (const HubFile& file : files) {
      std::error_code none;
      const std::uint64_t have = fs::exists(blob(file), none) ? file.size : fs::file_size(incomplete(file), none);
      const std::uint64_t more = file.size - (none ? 0 : std::min(have, file.size));
      bytes += std::min(more, std::numeric_limits<std::uint64_t>::max() - bytes);  // whatever the hub says
    }
    return bytes;
  }

  /// Makes the folders. @return kOutOfRange if the disk has no room for these files
  Result<void> prepare(const std::vector<HubFile>& files) const {
    std::error_code failed;
    for (const fs::path& folder : {folder_ / "blobs", locks_}) {
      fs::create_directories(folder, failed);
      if (failed) return file_error(Errc::kIo, folder, "cannot be created: {}", failed.message());
    }
    const fs::space_info disk = fs::space(folder_, failed);
    if (!failed && disk.available < left(files))
      return file_error(Errc::kOutOfRange, folder_, "{} are free, wanted {}", size_text(disk.available),
                        size_text(left(files)));
    return {};
  }

  /// @param quiet  without progress, for small files
  Result<void> run(const std::vector<HubFile>& files, bool quiet = false) {
    const std::uint64_t bytes = left(files);
    if (!quiet) progress_.emplace("downloading " + name_.text() + ", MB", static_cast<int>(bytes / 1'000'000 + 1));
    std::atomic<std::size_t> next = 0;
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < std::min<int>(kAtOnce, static_cast<int>(files.size())); ++i)
        threads.emplace_back([&] {
          for (std::size_t at = next++; at < files.size() && !stopped_; at = next++) {
            const Result<void> done = no_throw([&] { return fetch_file(files[at]); });
            if (!done) fail({done.error().code, files[at].name + ": " + done.error().message});
          }
        });
    }
    if (!failure_ && progress_) progress_->advance_to(static_cast<double>(bytes / 1'000'000 + 1));
    progress_.reset();
    return failure_ ? Result<void>(*failure_) : Result<void>();
  }

  /// Records the revision's commit, and the files that the repository lacks.
  Result<void> conclude(const std::vector<std::string>& absent) const {
    std::error_code failed;
    if (!is_commit(name_.revision)) {
      const fs::path ref = folder_ / "refs" / name_.revision;
      fs::create_directories(ref.parent_path(), failed);
      RETURN_IF_ERROR(replace_text(ref, repository_.commit));
    }
    const fs::path none = folder_ / ".no_exist" / repository_.commit;
    if (!absent.empty()) fs::create_directories(none, failed);
    for (const std::string& name : absent) RETURN_IF_ERROR(replace_text(none / name, ""));
    return {};
  }

 private:
  fs::path blob(const HubFile& file) const { return folder_ / "blobs" / file.etag; }
  fs::path incomplete(const HubFile& file) const { return blob(file).concat(".incomplete"); }

  void fail(const Error& why) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = why;
    stopped_ = true;
  }
  void count(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    received_ += bytes;
    if (progress_) progress_->advance_to(static_cast<double>(received_) / 1e6);
  }

  /// Downloads the blob, unless another process has done so meanwhile, and links it.
  Result<void> fetch_file(const HubFile& file) {
    const Result<DurableFile> lock = locked(file);
    if (!lock && lock.error().code != Errc::kUnsupported) return lock.error();
    std::error_code ignored;
    if (fs::exists(blob(file), ignored)) return link(file);
    if (lock) {
      RETURN_IF_ERROR(fetch_blob(file, incomplete(file)));
      return link(file);
    }
    // Another program may download the same: each writes a part of its own, which nobody continues.
    if (!warned_.exchange(true))
      complain("{}; programs that download the same file do not share it", lock.error().message);
    const fs::path own = incomplete(file).concat("." + unused_name());
    const Result<void> done = fetch_blob(file, own);
    if (done) return link(file);
    fs::remove(own, ignored);
    return done;
  }

  Result<DurableFile> locked(const HubFile& file) const {
    ASSIGN_OR_RETURN(DurableFile lock, DurableFile::open(locks_ / (file.etag + ".lock"), O_RDWR | O_CREAT, 0664));
    for (bool announced = false;;) {
      const Result<void> had = lock.lock();
      if (had) return lock;
      if (had.error().code != Errc::kUnavailable) return had.error();
      if (stopped_) return Error{Errc::kCancelled, "nobody waits any longer"};
      if (!std::exchange(announced, true)) complain("waiting for another program that downloads {}", file.name);
      std::this_thread::sleep_for(kPoll);
    }
  }

  /// @param path  of the part until it is whole
  Result<void> fetch_blob(const HubFile& file, const fs::path& path) {
    ASSIGN_OR_RETURN(const DurableFile part, DurableFile::open(path, O_RDWR | O_CREAT));
    FileDigest digest(file.etag, file.size);
    Body body{.have = 0, .size_max = file.size, .take = {}};
    body.take = [&](std::uint64_t at, std::string_view piece) -> Result<void> {
      if (at == 0) {
        RETURN_IF_ERROR(part.cut_to(0));
        digest = FileDigest(file.etag, file.size);
      }
      digest.add(piece);
      count(std::ssize(piece));
      return part.write_at(at, piece);
    };
    RETURN_IF_ERROR(read_part(part, file, digest, body.have));
    const std::string target =
        fmt::format("/{}/resolve/{}/{}", name_.repository, repository_.commit, percent_encoded(file.name));
    for (const bool again : {true, false}) {
      if (body.have < file.size) RETURN_IF_ERROR(client_.get(target, body, [&] { return stopped_.load(); }));
      const std::string seen = digest.hex();
      if (body.have == file.size && seen == file.etag) break;
      count(-static_cast<std::int64_t>(body.have));
      body.have = 0;
      digest = FileDigest(file.etag, file.size);
      RETURN_IF_ERROR(part.cut_to(0));
      if (!again)
        return Error(Errc::kMismatch, "{} is {}, the hub says {}; it was thrown away", digest.name(), seen, file.etag);
    }
    RETURN_IF_ERROR(part.sync());
    if (::rename(path.c_str(), blob(file).c_str()) != 0) return system_error(blob(file), "rename to");
    return {};
  }

  /// Reads the part that an earlier download has left into the digest.
  static Result<void> read_part(const DurableFile& part, const HubFile& file, FileDigest& digest, std::uint64_t& have) {
    constexpr std::size_t kPieceBytes = 1 << 20;
    ASSIGN_OR_RETURN(const std::uint64_t size, part.size());
    if (size > file.size) return part.cut_to(0);
    while (have < size) {
      ASSIGN_OR_RETURN(const std::string piece, part.read_at(have, kPieceBytes));
      if (piece.empty()) break;
      digest.add(piece);
      have += piece.size();
    }
    return {};
  }

  /// Makes a relative link, or moves the file itself where links are impossible.
  Result<void> link(const HubFile& file) const {
    const fs::path pointer = snapshot() / file.name;
    std::error_code failed;
    fs::create_directories(pointer.parent_path(), failed);
    fs::create_symlink(blob(file).lexically_relative(pointer.parent_path()), pointer, failed);
    if (!failed || fs::exists(pointer)) return {};
    fs::remove(pointer, failed);  // a dangling link
    fs::create_symlink(blob(file).lexically_relative(pointer.parent_path()), pointer, failed);
    if (failed) fs::rename(blob(file), pointer, failed);
    if (failed) return file_error(Errc::kIo, pointer, "cannot be linked: {}", failed.message());
    return {};
  }

  const HubClient& client_;
  const HubName& name_;
  const HubListing& repository_;
  const fs::path folder_, locks_;
  std::mutex mutex_;
  std::optional<Progress> progress_;
  std::int64_t received_ = 0;
  std::optional<Error> failure_;
  std::atomic<bool> stopped_ = false, warned_ = false;
};

Result<fs::path> fetch(const HubSettings& hub, const HubName& name, HubNeed need) {
  if (hub.offline)
    return Error(Errc::kUnavailable, "not all of it is in {}, and nobody may be asked (--offline, HF_HUB_OFFLINE)",
                 hub.cache.string());
  const Result<HttpUrl> endpoint = parse_http_url(hub.endpoint);
  if (!endpoint)
    return Error(Errc::kInvalidArgument, "HF_ENDPOINT is '{}', which {}", hub.endpoint, endpoint.error().message);
  const HubClient client(hub, name, *endpoint);
  std::string listing;
  Body body{.have = 0, .size_max = kListingBytesMax, .take = [&](std::uint64_t at, std::string_view piece) {
              listing.resize(at);
              listing += piece;
              return Result<void>();
            }};
  RETURN_IF_ERROR(client.get(
      fmt::format("/api/models/{}/revision/{}?blobs=true", name.repository, replaced(name.revision, "/", "%2F")), body,
      [] { return false; }));
  ASSIGN_OR_RETURN(const HubListing repository, read_listing(listing));
  ASSIGN_OR_RETURN(HubFiles files, choose_files(repository.names(), name.file, need));
  Download download(client, hub, name, repository);
  if (!files.index.empty()) {
    ASSIGN_OR_RETURN(const std::vector<HubFile> index, download.missing({files.index}));
    RETURN_IF_ERROR(download.prepare(index));
    RETURN_IF_ERROR(download.run(index, /*quiet=*/true));
    ASSIGN_OR_RETURN(const std::string text, read_text(download.snapshot() / files.index));
    ASSIGN_OR_RETURN(const std::vector<std::string> shards, shards_of_index(text, files.index));
    files.names.insert(files.names.end(), shards.begin(), shards.end());
  }
  ASSIGN_OR_RETURN(const std::vector<HubFile> missing, download.missing(files.names));
  if (!missing.empty()) {
    RETURN_IF_ERROR(download.prepare(missing));
    complain("downloading {} from {}: {}, {}, to {}", name.text(), hub.endpoint, counted(missing.size(), "file"),
             size_text(download.left(missing)), hub.cache.string());
    // Weights come last, and only after all other files: a model with weights is complete.
    const auto is_weights = [](const HubFile& file) {
      return file.name.ends_with(".safetensors") || file.name.ends_with(".gguf");
    };
    const auto weights = std::ranges::find_if(missing, is_weights);
    RETURN_IF_ERROR(download.run({missing.begin(), weights}));
    RETURN_IF_ERROR(download.run({weights, missing.end()}));
  }
  RETURN_IF_ERROR(download.conclude(files.absent));
  return files.model.empty() ? download.snapshot() : download.snapshot() / files.model;
}

}  // namespace

Result<fs::path> fetch_from_hub(const HubSettings& hub, const HubName& name, HubNeed need) {
  Result<fs::path> fetched = fetch(hub, name, need);
  if (fetched) return fetched;
  return Error{fetched.error().code, name.text() + ": " + fetched.error().message};
}

}  // namespace outrider
