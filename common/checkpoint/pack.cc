#include "common/checkpoint/pack.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/checkpoint/safetensors.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kManifest[] = "manifest.json", kImage[] = "weights.bump", kFormat[] = "outrider-pack";
constexpr std::size_t kManifestBytesMax = 100'000'000;
constexpr std::size_t kRankMax = 4;

std::uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string hex(std::uint64_t x) { return fmt::format("{:016x}", x); }

Error io_error(const char* verb, const fs::path& path) {
  return Error{Errc::kIo, fmt::format("{}: cannot {}: {}", path.string(), verb, std::strerror(errno))};
}

/// Typed look-ups in one JSON object of the manifest; the first failure is kept.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("an object");
  }

  std::string text(const char* key) {
    const json* value = get(key);
    if (value == nullptr) return {};
    if (!value->is_string()) return fail_at(key, "a string"), std::string();
    return value->get<std::string>();
  }
  std::uint64_t number(const char* key) {
    const json* value = get(key);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned()) return fail_at(key, "a number, 0 or more"), 0;
    return value->get<std::uint64_t>();
  }
  std::uint64_t hex_number(const char* key) {
    const std::string digits = text(key);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (!error_ && (error != std::errc() || end != digits.data() + digits.size())) fail_at(key, "hexadecimal digits");
    return value;
  }
  bool flag(const char* key) {
    const json* value = get(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return fail_at(key, "true or false"), false;
    return value->get<bool>();
  }
  std::vector<std::int64_t> shape(const char* key) {
    const json* value = get(key);
    std::vector<std::int64_t> sizes;
    if (value == nullptr) return sizes;
    if (!value->is_array() || value->size() > kRankMax) return fail_at(key, "up to 4 sizes"), sizes;
    std::int64_t elements = 1;
    for (const json& size : *value) {
      const bool fits = size.is_number_unsigned() && size.get<std::uint64_t>() > 0 &&
                        std::in_range<std::int64_t>(size.get<std::uint64_t>()) &&
                        !__builtin_mul_overflow(elements, size.get<std::int64_t>(), &elements);
      if (!fits) return fail_at(key, "sizes of 1 or more, whose product fits 63 bits,"), sizes;
      sizes.push_back(size.get<std::int64_t>());
    }
    return sizes;
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const json* get(const char* key) {
    if (error_) return nullptr;
    const auto at = object_.find(key);
    if (at == object_.end()) return fail(fmt::format("the key '{}'", key)), nullptr;
    return &*at;
  }
  void fail_at(const char* key, const std::string& wanted) {
    const json& seen = object_.at(key);
    const std::string shown =
        seen.is_structured() ? std::string("an ") + seen.type_name() : seen.dump();  // dump() recurses
    fail(fmt::format("{} for '{}', not {:.40}", wanted, key, shown));
  }
  void fail(const std::string& wanted) {
    if (!error_) error_ = Error{Errc::kMalformed, fmt::format("{}: wanted {}", where_, wanted)};
  }

  const json& object_;
  std::string where_;
  std::optional<Error> error_;
};

/// To disk, so that a rename never outlives what it names.
Result<void> sync(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error("open", path);
  const int rc = fsync(fd);
  const int error = errno;
  close(fd);
  errno = error;
  if (rc != 0) return io_error("write", path);
  return {};
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
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(name));
  if (file.bytes().size() > kManifestBytesMax) {
    return Error{Errc::kOutOfRange,
                 fmt::format("{}: {} bytes, at most {}", name.string(), file.bytes().size(), kManifestBytesMax)};
  }
  const auto* const text = reinterpret_cast<const char*>(file.bytes().data());
  const json manifest = json::parse(text, text + file.bytes().size(), nullptr, /*allow_exceptions=*/false);
  Fields top(manifest, name.string());
  const std::string format = top.text("format");
  const std::uint64_t version = top.number("version");
  if (top.error()) return *top.error();
  if (format != kFormat)
    return Error{Errc::kMalformed, fmt::format("{}: format {}, wanted {}", name.string(), quote(format), kFormat)};
  if (version != kPackVersion) {
    const std::string source = top.text("source");  // of another version it may be missing
    return Error{Errc::kVersionMismatch,
                 fmt::format("{}: a pack of version {}, this program reads version {}: pack {} again", name.string(),
                             version, kPackVersion, source.empty() ? "the model" : quote(source))};
  }
  pack->info_ = {.dtype = top.text("dtype"),
                 .source = top.text("source"),
                 .fingerprint = top.hex_number("fingerprint"),
                 .embedding_fingerprint = top.hex_number("embedding_fingerprint"),
                 .embedding_only = top.flag("embedding_only")};
  const std::uint64_t image_bytes = top.number("image_bytes");
  if (top.error()) return *top.error();

  ASSIGN_OR_RETURN(MappedFile image, MappedFile::open(dir / kImage));
  if (image.bytes().size() != image_bytes) {
    return Error{Errc::kMalformed, fmt::format("{}: {} bytes, the manifest says {}", (dir / kImage).string(),
                                               image.bytes().size(), image_bytes)};
  }
  pack->image_ = std::make_unique<MappedFile>(std::move(image));

  const auto entries = manifest.find("entries");
  if (entries == manifest.end() || !entries->is_array())
    return Error{Errc::kMalformed, fmt::format("{}: wanted an array 'entries'", name.string())};
  pack->entries_.reserve(entries->size());  // by_name_ looks into it
  for (const json& object : *entries) {
    Fields fields(object, fmt::format("{}: entry {}", name.string(), pack->entries_.size()));
    PackEntry entry{.name = fields.text("name"),
                    .type = fields.text("type"),
                    .shape = fields.shape("shape"),
                    .layout = fields.text("layout"),
                    .offset = fields.number("offset"),
                    .size = fields.number("size"),
                    .checksum = fields.hex_number("checksum")};
    if (fields.error()) return *fields.error();
    if (entry.offset % kPackAlignment != 0 || entry.offset > image_bytes || entry.size > image_bytes - entry.offset) {
      return Error{
          Errc::kMalformed,
          fmt::format("{}: entry {} lies at {} with {} bytes, wanted a multiple of {} inside the {} bytes of {}",
                      name.string(), quote(entry.name), entry.offset, entry.size, kPackAlignment, image_bytes, kImage)};
    }
    pack->entries_.push_back(std::move(entry));
    if (const PackEntry& added = pack->entries_.back();
        !pack->by_name_.emplace(added.name, pack->entries_.size() - 1).second) {
      return Error{Errc::kMalformed, fmt::format("{}: entry {} is there twice", name.string(), quote(added.name))};
    }
  }
  return std::shared_ptr<const Pack>(pack);
}

const PackEntry* Pack::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &entries_[at->second];
}

Result<void> Pack::verify() const {
  for (const PackEntry& entry : entries_) {
    const std::uint64_t seen = checksum_of(bytes(entry));
    if (seen == entry.checksum) continue;
    return Error{Errc::kMalformed,
                 fmt::format("{}: checksum of {} is {}, the manifest says {}", (path_ / kImage).string(),
                             quote(entry.name), hex(seen), hex(entry.checksum))};
  }
  return {};
}

Result<NewDirectory> NewDirectory::create(const fs::path& dir) {
  std::error_code error;
  const fs::path name = fs::absolute(dir, error).lexically_normal();
  const fs::path final_name = name.has_filename() ? name : name.parent_path();
  if (fs::exists(final_name, error))
    return Error{Errc::kInvalidArgument, fmt::format("{}: exists; wanted a new name", dir.string())};
  fs::path partial = final_name;
  partial += fmt::format(".partial-{}", getpid());
  fs::remove_all(partial, error);  // of a killed program that had our number
  if (!error) fs::create_directories(partial, error);
  if (error) return Error{Errc::kIo, fmt::format("{}: cannot create: {}", partial.string(), error.message())};
  return NewDirectory(final_name, partial);
}

NewDirectory::~NewDirectory() {
  std::error_code ignored;
  if (!partial_.empty()) fs::remove_all(partial_, ignored);
}

Result<void> NewDirectory::add_file(const std::string& name, std::string_view text) {
  const fs::path path = partial_ / name;
  std::FILE* const file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return io_error("create", path);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) return io_error("write", path);
  return sync(path);
}

Result<void> NewDirectory::commit() {
  RETURN_IF_ERROR(sync(partial_));
  if (std::rename(partial_.c_str(), final_.c_str()) != 0) return io_error("rename to its final name", partial_);
  partial_.clear();
  return sync(final_.parent_path());
}

Result<std::unique_ptr<PackWriter>> PackWriter::create(const fs::path& dir) {
  ASSIGN_OR_RETURN(NewDirectory directory, NewDirectory::create(dir));
  std::unique_ptr<PackWriter> writer(new PackWriter(std::move(directory)));
  const fs::path image = writer->directory_.path() / kImage;
  writer->image_ = std::fopen(image.c_str(), "wbe");
  if (writer->image_ == nullptr) return io_error("create", image);
  return writer;
}

PackWriter::~PackWriter() {
  if (image_ != nullptr) std::fclose(image_);
}

Result<void> PackWriter::add(PackEntry entry, std::span<const std::byte> bytes) {
  return add(std::move(entry), 1, [&](std::int64_t) { return bytes; });
}

Result<void> PackWriter::add(PackEntry entry, std::int64_t count,
                             const std::function<std::span<const std::byte>(std::int64_t)>& piece) {
  if (by_name_.contains(entry.name)) return {};
  const auto write = [&](std::span<const std::byte> bytes) {
    end_ += bytes.size();
    return std::fwrite(bytes.data(), 1, bytes.size(), image_) == bytes.size();
  };
  static constexpr std::array<std::byte, kPackAlignment> kZeros{};
  bool written = write(std::span(kZeros).first((kPackAlignment - end_ % kPackAlignment) % kPackAlignment));
  entry.offset = end_;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  for (std::int64_t i = 0; i < count && written; ++i) {
    const std::span<const std::byte> bytes = piece(i);
    XXH3_64bits_update(hash.get(), bytes.data(), bytes.size());
    written = write(bytes);
  }
  if (!written) return io_error("write", directory_.path() / kImage);
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
  const fs::path image = directory_.path() / kImage;
  if (std::fclose(std::exchange(image_, nullptr)) != 0) return io_error("write", image);
  RETURN_IF_ERROR(sync(image));
  RETURN_IF_ERROR(add_file(kManifest, manifest.dump(1, ' ', false, json::error_handler_t::replace)));
  return directory_.commit();
}

}  // namespace outrider
