#include "batch/hash.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/base/check.h"

namespace outrider {
namespace {
XXH3_state_t* state_of(const std::shared_ptr<void>& state) { return static_cast<XXH3_state_t*>(state.get()); }
Hash128 to_array(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }
}  // namespace

Hash128 hash128(std::string_view bytes) { return to_array(XXH3_128bits(bytes.data(), bytes.size())); }
std::uint64_t hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
std::string hex(const Hash128& hash) { return fmt::format("{:016x}{:016x}", hash[0], hash[1]); }

StreamedHash::StreamedHash()
    : state_(XXH3_createState(), [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }) {
  CHECK(state_ != nullptr && XXH3_128bits_reset(state_of(state_)) == XXH_OK);
}
void StreamedHash::add(std::string_view bytes) { XXH3_128bits_update(state_of(state_), bytes.data(), bytes.size()); }
Hash128 StreamedHash::value() const { return to_array(XXH3_128bits_digest(state_of(state_))); }

}  // namespace outrider
