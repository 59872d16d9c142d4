#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/os/descriptor.h"
#include "common/os/durable_file.h"
#include "common/os/files.h"

namespace outrider {

/// One region of a packed image: name, type and offset.
struct PackEntry {
  std::string name;
  std::string type;  ///< element type: "F32", "Q8_0", "int4", ...
  std::vector<std::int64_t> shape;
  std::string layout;                  ///< arrangement of a matrix (PackedWeights::layout); empty for plain rows
  std::uint64_t offset = 0, size = 0;  ///< in weights.bump, bytes; offsets are multiples of kPackAlignment
  std::uint64_t checksum = 0;          ///< XXH3 64 of the bytes
};

/// The manifest's facts about the whole pack.
struct PackInfo {
  std::string dtype;              ///< of the matrices, as --dtype names it
  std::string source;             ///< path of the packed model, for people
  std::uint64_t fingerprint = 0;  ///< the source's (Checkpoint::fingerprint)
  std::uint64_t embedding_fingerprint = 0;
  bool embedding_only = false;  ///< has the embedding table alone: a drafter's copy of its target's
};

inline constexpr std::uint64_t kPackAlignment = 64;
/// The only version that readers accept: making a pack again takes seconds, and a guess could give wrong answers.
inline constexpr int kPackVersion = 4;

/// A packed model: DIR/manifest.json, and the mapped DIR/weights.bump that it indexes, with config.json, tokenizer.json
/// and generation_config.json as in a Hugging Face directory.
class Pack {
 public:
  /// Reads and checks the manifest, and maps the image without touching its pages.
  /// @return kNotFound or kIo for a file, kVersionMismatch for a pack of another version, kMalformed
  static Result<std::shared_ptr<const Pack>> open(const std::filesystem::path& dir);

  const PackInfo& info() const { return info_; }
  const std::filesystem::path& path() const { return path_; }
  std::span<const PackEntry> entries() const { return entries_; }
  /// Returns an entry; null if there is none. O(1).
  const PackEntry* find(std::string_view name) const;
  std::span<const std::byte> bytes(const PackEntry& entry) const {
    return image_->bytes().subspan(entry.offset, entry.size);
  }
  /// Reads everything and compares checksums. @return kMalformed naming the first entry that differs.
  Result<void> verify() const;

 private:
  Pack() = default;

  std::filesystem::path path_;
  PackInfo info_;
  std::unique_ptr<MappedFile> image_;
  std::vector<PackEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // views into entries_
};

/// Returns true if `path` is a directory with a pack's manifest.json.
bool is_pack(const std::filesystem::path& path);

/// Calls Pack::verify() for each path. @return kUnsupported if one is not a pack: other formats have no checksums
Result<void> verify_packs(std::initializer_list<std::filesystem::path> paths);

/// A directory that is filled as DIR.partial-X and renamed by commit(), so that DIR is always complete. Destruction
/// without commit() removes it; a killed program leaves the partial one.
class NewDirectory {
 public:
  /// @return kInvalidArgument if `dir` exists, kIo if it cannot be made.
  static Result<NewDirectory> create(const std::filesystem::path& dir);
  NewDirectory(NewDirectory&& other) noexcept
      : final_(std::move(other.final_)), partial_(std::exchange(other.partial_, {})), lock_(std::move(other.lock_)) {}
  ~NewDirectory();

  /// The directory for files until commit().
  const std::filesystem::path& path() const { return partial_; }
  Result<void> add_file(const std::string& name, std::string_view text);
  Result<void> commit();

 private:
  NewDirectory(std::filesystem::path final_name, std::filesystem::path partial, Descriptor lock)
      : final_(std::move(final_name)), partial_(std::move(partial)), lock_(std::move(lock)) {}
  std::filesystem::path final_, partial_;
  Descriptor lock_;  ///< of partial_: unlocked once its program has died
};

/// Writes one packed model.
class PackWriter {
 public:
  /// @param dir  must not exist; it appears when finish() has succeeded
  static Result<std::unique_ptr<PackWriter>> create(const std::filesystem::path& dir);

  /// Appends one region; `entry` gives its name and type, the writer sets its offset. Ignores a name that is already
  /// there (a model may ask for a tensor twice).
  Result<void> add(PackEntry entry, std::span<const std::byte> bytes);
  /// The same in pieces, which are made one at a time: piece(i) for 0 <= i < count.
  Result<void> add(PackEntry entry, std::int64_t count,
                   const std::function<std::span<const std::byte>(std::int64_t)>& piece);
  /// Adds another file to the directory.
  Result<void> add_file(const std::string& name, std::string_view text) { return directory_.add_file(name, text); }
  /// Writes the manifest, syncs everything to disk, and renames.
  Result<void> finish(const PackInfo& info);

 private:
  PackWriter(NewDirectory directory, DurableFile image) : directory_(std::move(directory)), image_(std::move(image)) {}

  NewDirectory directory_;
  DurableFile image_;
  std::uint64_t end_ = 0;
  std::vector<PackEntry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace outrider
