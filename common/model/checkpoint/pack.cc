#include "common/model/checkpoint/pack.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/model/checkpoint/safetensors.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kManifest[] = "manifest.json", kImage[] = "weights.bump", kFormat[] = "outrider-pack";
constexpr char kPartial[] = ".partial-";  ///< suffix of an unfinished folder, before a unique part
constexpr std::size_t kPackRankMax = 4;

std::uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

std::uint64_t hex_number(const JsonFields& fields, const char* key) {
  const std::string digits = fields.text(key);
  const auto value = to_number<std::uint64_t>(digits, 16);
  if (!value) fields.fail(Errc::kMalformed, key, digits, "hexadecimal digits");
  return value.value_or(0);
}

std::uint64_t byte_count(const JsonFields& fields, const char* key) {
  return static_cast<std::uint64_t>(fields.integer(key, {}, 0, std::numeric_limits<std::int64_t>::max()));
}

std::vector<std::int64_t> read_shape(const JsonFields& fields) {
  constexpr const char* kKey = "shape";
  const json& value = fields.array(kKey);
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 1;
  for (const json& size : value) {
    const bool fits = sizes.size() < kPackRankMax && size.is_number_unsigned() && size.get<std::uint64_t>() > 0 &&
                      std::in_range<std::int64_t>(size.get<std::uint64_t>()) &&
                      !__builtin_mul_overflow(elements, size.get<std::int64_t>(), &elements);
    if (!fits) {
      fields.fail(Errc::kMalformed, kKey, value, "up to 4 sizes of 1 or more, whose product fits 63 bits");
      break;
    }
    sizes.push_back(size.get<std::int64_t>());
  }
  return sizes;
}

}  // namespace

bool is_pack(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kManifest, ignored);
}

Result<std::shared_ptr<const Pack>> Pack::open(const fs::path& dir) {
  const std::shared_ptr<Pack> pack(new Pack());
  pack->path_ = dir;
  const fs::path name = dir / kManifest;
  ASSIGN_OR_RETURN(const std::string text, read_text(name));
  ASSIGN_OR_RETURN(const json manifest, parse_json_object(text, name.string(), text.size()));
  FirstError wrong{name.string()};
  const JsonFields top(manifest, "", wrong);
  const std::string format = top.text("format");
  const std::uint64_t version = byte_count(top, "version");
  if (wrong.error) return *wrong.error;
  if (format != kFormat) return file_error(Errc::kMalformed, name, "format {}, wanted {}", quote(format), kFormat);
  if (version != kPackVersion) {
    const json& source = member(manifest, "source");  // another version may lack it
    return file_error(Errc::kVersionMismatch, name,
                      "a pack of version {}, this program reads version {}: pack {} again", version, kPackVersion,
                      source.is_string() ? show(source) : "the model");
  }
  pack->info_ = {.dtype = top.text("dtype"),
                 .source = top.text("source"),
                 .fingerprint = hex_number(top, "fingerprint"),
                 .embedding_fingerprint = hex_number(top, "embedding_fingerprint"),
                 .embedding_only = top.boolean("embedding_only")};
  const std::uint64_t image_bytes = byte_count(top, "image_bytes");
  const json& entries = top.array("entries");
  if (wrong.error) return *wrong.error;

  ASSIGN_OR_RETURN(MappedFile image, MappedFile::open(dir / kImage));
  if (image.bytes().size() != image_bytes) {
    return file_error(Errc::kMalformed, dir / kImage, "{} bytes, the manifest says {}", image.bytes().size(),
                      image_bytes);
  }
  pack->image_ = std::make_unique<MappedFile>(std::move(image));

  pack->entries_.reserve(entries.size());  // reserved because by_name_ has views into it
  for (const json& object : entries) {
    const JsonFields fields(object, fmt::format("entry {}: ", pack->entries_.size()), wrong);
    PackEntry entry{.name = fields.text("name"),
                    .type = fields.text("type"),
                    .shape = read_shape(fields),
                    .layout = fields.text("layout"),
                    .offset = byte_count(fields, "offset"),
                    .size = byte_count(fields, "size"),
                    .checksum = hex_number(fields, "checksum")};
    if (wrong.error) return *wrong.error;
    if (entry.offset % kPackAlignment != 0 || entry.offset > image_bytes || entry.size > image_bytes - entry.offset) {
      return file_error(Errc::kMalformed, name,
                        "entry {} lies at {} with {} bytes, wanted a multiple of {} inside the {} bytes of {}",
                        quote(entry.name), entry.offset, entry.size, kPackAlignment, image_bytes, kImage);
    }
    pack->entries_.push_back(std::move(entry));
    if (const PackEntry& added = pack->entries_.back();
        !pack->by_name_.emplace(added.name, pack->entries_.size() - 1).second)
      return file_error(Errc::kMalformed, name, "entry {} is there twice", quote(added.name));
  }
  return std::shared_ptr<const Pack>(pack);
}

const PackEntry* Pack::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

Result<void> verify_packs(std::initializer_list<fs::path> paths) {
  for (const fs::path& path : paths) {
    if (!is_pack(path)) {
      return file_error(Errc::kUnsupported, path,
                        "has no checksums to verify its weights by, wanted a pack (outrider pack)");
    }
    ASSIGN_OR_RETURN(const std::shared_ptr<const Pack> pack, Pack::open(path));
    RETURN_IF_ERROR(pack->verify());
  }
  return {};
}

Result<void> Pack::verify() const {
  for (const PackEntry& entry : entries_) {
    const std::uint64_t seen = checksum_of(bytes(entry));
    if (seen == entry.checksum) continue;
    return file_error(Errc::kMalformed, path_ / kImage, "checksum of {} is {}, the manifest says {}", quote(entry.name),
                      hex(seen), hex(entry.checksum));
  }
  return {};
}

namespace {

/// See lock_file().
Result<Descriptor> lock_folder(const fs::path& folder) {
  Descriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock < 0) return system_error(folder, "open");
  RETURN_IF_ERROR(lock_file(lock, folder));
  return lock;
}

/// Removes unfinished folders of killed programs; none where there are no locks, which tell who is alive.
void remove_abandoned(const fs::path& final_name) {
  const std::string beginning = final_name.filename().string() + kPartial;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(final_name.parent_path(), error)) {
    if (!entry.path().filename().string().starts_with(beginning)) continue;
    const Result<Descriptor> lock = lock_folder(entry.path());
    if (!lock) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

}  // namespace

Result<NewDirectory> NewDirectory::create(const fs::path& dir) {
  std::error_code error;
  const fs::path name = fs::absolute(dir, error).lexically_normal();
  const fs::path final_name = name.has_filename() ? name : name.parent_path();
  if (fs::exists(final_name, error)) return file_error(Errc::kInvalidArgument, dir, "exists; wanted a new name");
  remove_abandoned(final_name);
  fs::path partial = final_name;
  partial += kPartial + unused_name();
  fs::create_directories(final_name.parent_path(), error);
  if (::mkdir(partial.c_str(), 0777) != 0) return system_error(partial, "create");
  Result<Descriptor> lock = lock_folder(partial);
  if (!lock && lock.error().code == Errc::kUnsupported) lock = Descriptor();
  if (lock) return NewDirectory(final_name, partial, std::move(*lock));
  fs::remove(partial, error);
  return lock.error();
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
}

Result<void> NewDirectory::add_file(const std::string& name, std::string_view text) {
  return replace_file(partial_ / name, [&](const AppendBytes& append) { return append(text); });
}

Result<void> NewDirectory::commit() {
  // Synced first, so that a rename is never durable before its contents.
  RETURN_IF_ERROR(sync_folder_of(partial_ / kManifest));
  if (std::rename(partial_.c_str(), final_.c_str()) != 0) return system_error(partial_, "rename to its final name");
  partial_.clear();
  return sync_folder_of(final_);
}

Result<std::unique_ptr<PackWriter>> PackWriter::create(const fs::path& dir) {
  ASSIGN_OR_RETURN(NewDirectory directory, NewDirectory::create(dir));
  ASSIGN_OR_RETURN(DurableFile image, DurableFile::open(directory.path() / kImage, O_WRONLY | O_CREAT | O_EXCL));
  return std::unique_ptr<PackWriter>(new PackWriter(std::move(directory), std::move(image)));
}

Result<void> PackWriter::add(PackEntry entry, std::span<const std::byte> bytes) {
  return add(std::move(entry), 1, [&](std::int64_t) { return bytes; });
}

Result<void> PackWriter::add(PackEntry entry, std::int64_t count,
                             const std::function<std::span<const std::byte>(std::int64_t)>& piece) {
  if (by_name_.contains(entry.name)) return {};
  entry.offset = end_ = (end_ + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const std::byte> bytes = piece(i);
    XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
    RETURN_IF_ERROR(image_.write_at(end_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    end_ += bytes.size();
  }
  entry.size = end_ - entry.offset;
  entry.checksum = XXH3_64bits_digest(hash.get());
  by_name_.emplace(entry.name, entries_.size());
  entries_.push_back(std::move(entry));
  return {};
}

Result<void> PackWriter::finish(const PackInfo& info) {
  json manifest = {{"format", kFormat},
                   {"version", kPackVersion},
                   {"dtype", info.dtype},
                   {"source", info.source},
                   {"fingerprint", hex(info.fingerprint)},
                   {"embedding_fingerprint", hex(info.embedding_fingerprint)},
                   {"embedding_only", info.embedding_only},
                   {"image_bytes", end_},
                   {"entries", json::array()}};
  for (const PackEntry& entry : entries_) {
    manifest["entries"].push_back({{"name", entry.name},
                                   {"type", entry.type},
                                   {"shape", entry.shape},
                                   {"layout", entry.layout},
                                   {"offset", entry.offset},
                                   {"size", entry.size},
                                   {"checksum", hex(entry.checksum)}});
  }
  RETURN_IF_ERROR(image_.sync());
  RETURN_IF_ERROR(add_file(kManifest, to_text(manifest, 1)));
  return directory_.commit();
}

}  // namespace outrider
