#include "common/model/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/model/checkpoint/pack.h"
#include "common/os/files.h"
#include "tests/support/temporary_dir.h"

namespace {
bool no_locks = false;  ///< as on some file systems
}  // namespace

extern "C" int flock(int file, int operation) noexcept {
  if (!no_locks) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}

namespace outrider {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = OUTRIDER_SOURCE_DIR;

/// The bytes of a little-endian number.
template <typename T>
std::string raw(T x) {
  return std::string(reinterpret_cast<const char*>(&x), sizeof(x));
}

std::string safetensors(std::string_view header, std::string_view data = "") {
  return raw<std::uint64_t>(header.size()) + std::string(header) + std::string(data);
}

std::string one_tensor(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view data) {
  return safetensors(
      fmt::format(R"({{"{}":{{"dtype":"{}","shape":{},"data_offsets":[0,{}]}}}})", name, dtype, shape, data.size()),
      data);
}

void expect_error(const Result<Checkpoint>& result, Errc code, std::string_view part) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
  EXPECT_LT(result.error().message.size(), 1000u);
}

TEST(MappedFile, ShowsTheBytesAndSurvivesMoves) {
  const TemporaryDir dir;
  Result<MappedFile> opened = MappedFile::open(dir.write("a", "hello"));
  ASSERT_TRUE(opened) << opened.error().message;
  MappedFile first = std::move(opened).value();
  const std::byte* const address = first.bytes().data();
  MappedFile second = std::move(first);
  EXPECT_EQ(second.bytes().data(), address);
  EXPECT_EQ(std::memcmp(second.bytes().data(), "hello", 5), 0);
  second = MappedFile::open(dir.write("b", "other one")).value();
  EXPECT_EQ(second.bytes().size(), 9u);
}

TEST(MappedFile, AcceptsAnEmptyFile) {
  const TemporaryDir dir;
  EXPECT_TRUE(MappedFile::open(dir.write("empty", "")).value().bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const TemporaryDir dir;
  EXPECT_EQ(MappedFile::open(dir.path() / "missing").error().code, Errc::kNotFound);
  EXPECT_EQ(MappedFile::open(dir.path()).error().code, Errc::kIo);
  const fs::path fifo = dir.path() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(fifo).error().code, Errc::kIo);  // and does not wait for a writer
}

struct RealFile {
  const char* path;
  std::size_t tensors;
};

TEST(Checkpoint, OpensRealFilesInNameOrder) {
  for (const RealFile& real : {RealFile{"models/nano/backbone", 348}, RealFile{"models/nano/assistant", 50},
                               RealFile{"tests/goldens/e4b/backbone", 132}, RealFile{"tests/goldens/e4b/assistant", 50},
                               RealFile{"tests/goldens/e4b/golden.safetensors", 0}}) {
    SCOPED_TRACE(real.path);
    const Result<Checkpoint> checkpoint = Checkpoint::open(kSource / real.path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_EQ(checkpoint->path(), kSource / real.path);
    if (real.tensors > 0) {
      EXPECT_EQ(checkpoint->tensors().size(), real.tensors);
    }
    std::string before;
    for (const TensorEntry& tensor : checkpoint->tensors()) {
      EXPECT_LT(before, tensor.name);
      before = tensor.name;
      EXPECT_EQ(checkpoint->find(tensor.name), &tensor);
      EXPECT_EQ(tensor.bytes.size(), static_cast<std::size_t>(tensor.element_count()) * size_bytes(tensor.dtype));
    }
  }
}

TEST(Checkpoint, ReadsRealTensors) {
  const Checkpoint checkpoint = Checkpoint::open(kSource / "models/nano/assistant").value();

  const TensorEntry* const ordering = checkpoint.require("masked_embedding.token_ordering", {8192}).value();
  std::vector<std::int64_t> ids(8192);
  ASSERT_TRUE(read_i64(*ordering, ids));
  std::ranges::sort(ids);
  for (std::int64_t i = 0; i < 8192; ++i) ASSERT_EQ(ids[static_cast<std::size_t>(i)], i);

  const TensorEntry* const norm = checkpoint.require("model.norm.weight", {192}).value();
  EXPECT_EQ(norm->dtype, DType::kBf16);
  std::vector<float> weights(192);
  ASSERT_TRUE(read_f32(*norm, weights));
  for (const float w : weights) ASSERT_TRUE(std::isfinite(w) && std::abs(w) < 100) << w;
}

TEST(Checkpoint, EntriesStayWhereTheyAreWhenItMoves) {
  Checkpoint first = Checkpoint::open(kSource / "models/nano/assistant").value();
  const TensorEntry* const entry = first.find("model.norm.weight");
  const Checkpoint second = std::move(first);
  EXPECT_EQ(second.find("model.norm.weight"), entry);
  std::vector<float> weights(192);
  EXPECT_TRUE(read_f32(*entry, weights));
}

TEST(Checkpoint, RequireNamesFileTensorAndShapes) {
  const TemporaryDir dir;
  const Checkpoint checkpoint =
      Checkpoint::open(dir.write("m.safetensors", one_tensor("x", "F32", "[2,1]", raw<std::uint64_t>(0)))).value();
  EXPECT_TRUE(checkpoint.require("x", {2, 1}));
  EXPECT_EQ(checkpoint.find("y"), nullptr);

  const Error shape = checkpoint.require("x", {1, 2}).error();
  EXPECT_EQ(shape.code, Errc::kMismatch);
  for (const char* part : {"m.safetensors", "\"x\"", "[2, 1]", "[1, 2]"}) {
    EXPECT_NE(shape.message.find(part), std::string::npos) << shape.message;
  }
  const Error missing = checkpoint.require("y", {3}).error();
  EXPECT_EQ(missing.code, Errc::kNotFound);
  for (const char* part : {"m.safetensors", "\"y\"", "[3]"}) {
    EXPECT_NE(missing.message.find(part), std::string::npos) << missing.message;
  }
}

TEST(Checkpoint, AcceptsWhatTheFormatAllows) {
  const TemporaryDir dir;
  // A scalar, an empty tensor inside another's range, metadata, padding, escapes, data without
  // owner.
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.write(
      "a.safetensors",
      safetensors(R"({"__metadata__":{"dtype":"pt","a":"b"},"s":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},)"
                  R"("e":{"dtype":"I64","shape":[3,0],"data_offsets":[2,2]},)"
                  R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}     )",
                  raw(2.5f) + "\x07" + "unused")));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  ASSERT_NE(checkpoint->find("a"), nullptr);
  std::array<float, 1> scalar;
  ASSERT_TRUE(read_f32(*checkpoint->require("s", {}).value(), scalar));
  EXPECT_EQ(scalar[0], 2.5f);
  EXPECT_TRUE(read_i64(*checkpoint->require("e", {3, 0}).value(), {}));

  const Result<Checkpoint> none = Checkpoint::open(dir.write("none.safetensors", safetensors("{}")));
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE(none->tensors().empty());
}

struct BadFile {
  const char* name;
  std::string content;
  Errc code;
  const char* message_part;
};

std::string header_of(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return safetensors(fmt::format(R"({{"x":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets),
                     std::string(16, '\0'));
}

std::vector<BadFile> bad_files() {
  const std::string deep(1'000'000, '[');
  std::string deep_objects;
  for (int i = 0; i < 200'000; ++i) deep_objects += R"({"a":)";
  const std::string f32 = R"("F32")";
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string data(16, '\0');
  return {
      {"Empty", "", Errc::kMalformed, "0 bytes long, wanted at least 8"},
      {"SevenBytes", "1234567", Errc::kMalformed, "7 bytes long"},
      {"HeaderBeyondTheFile", raw<std::uint64_t>(3) + "{}", Errc::kMalformed, "header of 3 bytes, but 2"},
      {"HeaderLengthAllOnes", raw(~std::uint64_t{0}) + "{}", Errc::kMalformed, "but 2 follow"},
      {"HeaderIsEmpty", safetensors(""), Errc::kMalformed, "not JSON"},
      {"HeaderIsNotJson", safetensors("{\"x\":"), Errc::kMalformed, "not JSON"},
      {"HeaderIsNotUtf8", safetensors("{\"\xff\":1}"), Errc::kMalformed, "not JSON"},
      {"HeaderHasATail", safetensors("{} x"), Errc::kMalformed, "not JSON"},
      {"HeaderIsAnArray", safetensors("[]"), Errc::kMalformed, "header must be an object, not an array"},
      {"HeaderIsANumber", safetensors("7"), Errc::kMalformed, "not the number 7"},
      {"HeaderIsNull", safetensors("null"), Errc::kMalformed, "not null"},
      {"DeepArrays", safetensors(deep), Errc::kMalformed, "header must be an object"},
      {"DeepArraysInAShape", safetensors(R"({"x":{"shape":)" + deep), Errc::kMalformed, "shape must be"},
      {"DeepObjects", safetensors(deep_objects), Errc::kMalformed, "\"a\""},
      {"DeepMetadata", safetensors(R"({"__metadata__":)" + deep_objects), Errc::kMalformed, "__metadata__"},
      {"MetadataHoldsANumber", safetensors(R"({"__metadata__":{"a":1}})"), Errc::kMalformed,
       "__metadata__ must be an object of strings, not the number 1"},
      {"TensorIsAString", safetensors(R"({"x":"y"})"), Errc::kMalformed,
       R"(tensor "x": must be an object, not the string "y")"},
      {"TensorIsEmpty", safetensors(R"({"x":{}})"), Errc::kMalformed, "has no dtype"},
      {"NoShape", safetensors(R"({"x":{"dtype":"F32","data_offsets":[0,0]}})"), Errc::kMalformed, "has no shape"},
      {"NoOffsets", safetensors(R"({"x":{"dtype":"F32","shape":[0]}})"), Errc::kMalformed, "has no data_offsets"},
      {"UnknownKey", safetensors(R"({"x":{"dtype":"F32","scale":1}})"), Errc::kMalformed, "unknown key \"scale\""},
      {"DtypeTwice", safetensors(R"({"x":{"dtype":"F32","dtype":"I8"}})"), Errc::kMalformed, "dtype is given twice"},
      {"ShapeTwice", safetensors(R"({"x":{"shape":[],"shape":[]}})"), Errc::kMalformed, "shape is given twice"},
      {"TensorTwice",
       safetensors(fmt::format(R"({{"x":{0},"y":{{"dtype":"F32","shape":[2],"data_offsets":[8,16]}},"x":{0}}})", good),
                   data),
       Errc::kMalformed, "tensor \"x\" is listed twice"},
      {"DtypeUnknown", header_of(R"("C64")", "[1]", "[0,8]"), Errc::kUnsupported, R"(dtype "C64", wanted F32)"},
      {"DtypeIsANumber", header_of("4", "[4]", "[0,4]"), Errc::kMalformed, "dtype must be a string, not the number 4"},
      {"DtypeIsAnArray", header_of("[]", "[4]", "[0,4]"), Errc::kMalformed, "dtype must be a string, not an array"},
      {"ShapeNegative", header_of(f32, "[-1]", "[0,4]"), Errc::kMalformed, "not the number -1"},
      {"ShapeFraction", header_of(f32, "[1.5]", "[0,4]"), Errc::kMalformed, "not the number 1.5"},
      {"ShapeBeyond63Bits", header_of(f32, "[9223372036854775808]", "[0,4]"), Errc::kMalformed, "9223372036854775808"},
      {"ShapeBeyond64Bits", header_of(f32, "[99999999999999999999]", "[0,4]"), Errc::kMalformed,
       "99999999999999999999"},
      {"ShapeOverflows", header_of(f32, "[4294967296,4294967296]", "[0,0]"), Errc::kMalformed, "overflows"},
      {"ShapeOverflowsBesideZero", header_of(f32, "[4611686018427387904,4,0]", "[0,0]"), Errc::kMalformed, "overflows"},
      {"ShapeOfRank9", header_of(f32, "[1,1,1,1,1,1,1,1,1]", "[0,4]"), Errc::kUnsupported, "more than 8"},
      {"ShapeIsANumber", header_of(f32, "4", "[0,4]"), Errc::kMalformed, "shape must be an array"},
      {"ShapeHoldsAString", header_of(f32, R"(["4"])", "[0,4]"), Errc::kMalformed, R"(not the string "4")"},
      {"OffsetsReversed", header_of(f32, "[1]", "[8,4]"), Errc::kMalformed, "data_offsets [8, 4]"},
      {"OffsetsOfThree", header_of(f32, "[1]", "[0,4,8]"), Errc::kMalformed, "data_offsets [0, 4, 8]"},
      {"OffsetsOfOne", header_of(f32, "[1]", "[4]"), Errc::kMalformed, "data_offsets [4]"},
      {"OffsetsNegative", header_of(f32, "[1]", "[-4,0]"), Errc::kMalformed, "not the number -4"},
      {"OffsetsBeyondTheFile", header_of(f32, "[4]", "[4,20]"), Errc::kMalformed, "holds 16 bytes"},
      {"OffsetsFarBeyondTheFile", header_of(f32, "[1]", "[9223372036854775803,9223372036854775807]"), Errc::kMalformed,
       "holds 16 bytes"},
      {"OffsetsTooWide", header_of(f32, "[1]", "[0,8]"), Errc::kMalformed, "span 8 bytes, wanted 4"},
      {"OffsetsTooNarrow", header_of(f32, "[3]", "[0,8]"), Errc::kMalformed, "span 8 bytes, wanted 12"},
      {"Overlap",
       safetensors(fmt::format(R"({{"x":{},"y":{{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}}})", good), data),
       Errc::kMalformed, "\"x\" and \"y\" overlap"},
      {"SameRange", safetensors(fmt::format(R"({{"x":{0},"y":{0}}})", good), data), Errc::kMalformed, "overlap"},
      {"NewlineInAName", safetensors(R"({"a\nb":1})"), Errc::kMalformed, R"("a\nb")"},
      {"LongName", safetensors(fmt::format(R"({{"{}":1}})", std::string(100'000, 'n'))), Errc::kMalformed, "nnn\"..."},
  };
}

TEST(Checkpoint, RefusesBadFilesWithOneLine) {
  const TemporaryDir dir;
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.name);
    const Result<Checkpoint> result = Checkpoint::open(dir.write("bad.safetensors", bad.content));
    expect_error(result, bad.code, bad.message_part);
    expect_error(result, bad.code, "bad.safetensors: ");
  }
}

TEST(Checkpoint, RefusesAHeaderOver100MB) {
  const TemporaryDir dir;
  const fs::path path = dir.write("a.safetensors", raw<std::uint64_t>(100'000'001) + "{}");
  fs::resize_file(path, 100'000'100);  // sparse
  expect_error(Checkpoint::open(path), Errc::kOutOfRange, "header of 100000001 bytes");
}

TEST(Checkpoint, RefusesEveryTruncationOfAFile) {
  const TemporaryDir dir;
  const std::string whole = one_tensor("x", "F32", "[2]", std::string(8, 'a'));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(Checkpoint::open(dir.write("a.safetensors", whole.substr(0, length)))) << length;
  }
  EXPECT_TRUE(Checkpoint::open(dir.write("a.safetensors", whole)));
}

TEST(Checkpoint, SurvivesEveryByteOfAHeaderChanged) {
  const TemporaryDir dir;
  const std::string whole = one_tensor("x", "F32", "[2]", std::string(8, 'a'));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\0', '"', '[', '{', '9', '-', '\xff'}) {
      std::string changed = whole;
      changed[at] = byte;
      const Result<Checkpoint> result = Checkpoint::open(dir.write("a.safetensors", changed));
      if (result) continue;
      EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
    }
  }
}

TEST(Checkpoint, MissingFilesAreNotFound) {
  const TemporaryDir dir;
  expect_error(Checkpoint::open(dir.path() / "no.safetensors"), Errc::kNotFound, "no.safetensors");
  expect_error(Checkpoint::open(dir.path()), Errc::kNotFound, "neither model.safetensors nor");
}

constexpr const char* kIndex = "model.safetensors.index.json";

TEST(Checkpoint, ReadsShards) {
  const TemporaryDir dir;
  dir.write("b.safetensors", one_tensor("x", "F32", "[1]", raw(1.0f)));
  dir.write("sub/a.safetensors", one_tensor("y", "F32", "[1]", raw(2.0f)));
  dir.write(kIndex, R"({"metadata":{"total_size":8,"more":[{"a":null,"b":[true,-1,1.5,"s"]}]},)"
                    R"("weight_map":{"y":"sub/a.safetensors","x":"b.safetensors"}})");
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "x");
  std::array<float, 1> y;
  ASSERT_TRUE(read_f32(*checkpoint->find("y"), y));
  EXPECT_EQ(y[0], 2.0f);
  EXPECT_EQ(checkpoint->find("y")->file, dir.path() / "sub/a.safetensors");
}

TEST(Checkpoint, ReadsTheTowersBesideTheModel) {
  const TemporaryDir dir;
  const fs::path model = dir.write("model.safetensors", one_tensor("x", "F32", "[1]", raw(1.0f)));
  dir.write("vision.safetensors", one_tensor("a", "F32", "[1]", raw(2.0f)));
  dir.write("audio.safetensors", one_tensor("b", "F32", "[1]", raw(3.0f)));
  const Result<Checkpoint> both = Checkpoint::open(dir.path()), alone = Checkpoint::open(model);
  ASSERT_TRUE(both) << both.error().message;
  ASSERT_EQ(both->tensors().size(), 3u);
  EXPECT_EQ(both->tensors()[0].name, "a");
  EXPECT_EQ(both->find("b")->file, dir.path() / "audio.safetensors");
  std::array<float, 1> a;
  ASSERT_TRUE(read_f32(*both->find("a"), a));
  EXPECT_EQ(a[0], 2.0f);
  EXPECT_EQ(both->find("a")->file, dir.path() / "vision.safetensors");
  EXPECT_EQ(alone.value().tensors().size(), 1u) << "a file that is named is read alone";

  dir.write("vision.safetensors", one_tensor("x", "F32", "[1]", raw(2.0f)));
  expect_error(Checkpoint::open(dir.path()), Errc::kMalformed, "a second tensor is called \"x\"");
  dir.write("vision.safetensors", "abc");
  expect_error(Checkpoint::open(dir.path()), Errc::kMalformed, "vision.safetensors: 3 bytes");
}

TEST(Checkpoint, RefusesBadIndexesWithOneLine) {
  std::string deep = R"({"metadata":)";
  deep += std::string(1'000'000, '[');
  const std::vector<BadFile> cases = {
      {"NotJson", "{", Errc::kMalformed, "not JSON"},
      {"Empty", "", Errc::kMalformed, "not JSON"},
      {"Array", "[]", Errc::kMalformed, "index must be an object"},
      {"Deep", deep, Errc::kMalformed, "less than 16 deep"},
      {"NoMap", "{}", Errc::kMalformed, "has no weight_map"},
      {"MapIsAnArray", R"({"weight_map":[]})", Errc::kMalformed, "weight_map must be an object, not an array"},
      {"MapIsAString", R"({"weight_map":"a"})", Errc::kMalformed, "weight_map must be an object"},
      {"MapTwice", R"({"weight_map":{},"weight_map":{}})", Errc::kMalformed, "weight_map is given twice"},
      {"ShardIsANumber", R"({"weight_map":{"x":3}})", Errc::kMalformed, "shard of tensor \"x\" must be a string"},
      {"ShardIsAnObject", R"({"weight_map":{"x":{}}})", Errc::kMalformed, "must be a string, not an object"},
      {"TensorTwice", R"({"weight_map":{"x":"a.safetensors","x":"a.safetensors"}})", Errc::kMalformed, "listed twice"},
      {"ShardMissing", R"({"weight_map":{"x":"gone.safetensors"}})", Errc::kNotFound, "gone.safetensors"},
      {"TensorNotInShard", R"({"weight_map":{"z":"a.safetensors"}})", Errc::kMalformed, "tensor \"z\" is not in shard"},
      {"ShardAbove", R"({"weight_map":{"x":"../a.safetensors"}})", Errc::kMalformed, "inside the directory"},
      {"ShardAboveWithin", R"({"weight_map":{"x":"s/../../a.safetensors"}})", Errc::kMalformed, "inside the directory"},
      {"ShardAbsolute", R"({"weight_map":{"x":"/etc/passwd"}})", Errc::kMalformed, "inside the directory"},
      {"ShardEmpty", R"({"weight_map":{"x":""}})", Errc::kMalformed, "inside the directory"},
      {"ShardWithNul", R"({"weight_map":{"x":"a.safetensors\u0000"}})", Errc::kMalformed, "inside the directory"},
      {"ShardIsTheDirectory", R"({"weight_map":{"x":"."}})", Errc::kIo, "not a regular file"},
      {"ShardIsBroken", R"({"weight_map":{"x":"broken.safetensors"}})", Errc::kMalformed,
       "broken.safetensors: 3 bytes"},
  };
  const TemporaryDir dir;
  dir.write("a.safetensors", one_tensor("x", "F32", "[1]", raw(1.0f)));
  dir.write("broken.safetensors", "abc");
  for (const BadFile& bad : cases) {
    SCOPED_TRACE(bad.name);
    dir.write(kIndex, bad.content);
    expect_error(Checkpoint::open(dir.path()), bad.code, bad.message_part);
  }
}

TEST(Read, ConvertsEachFloatTypeExactlyAtAnyAlignment) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto u16 = [](std::initializer_list<std::uint16_t> words) {
    std::string bytes;
    for (const std::uint16_t word : words) bytes += raw(word);
    return bytes;
  };
  struct Case {
    const char* dtype;
    std::string data;
    std::vector<float> wanted;
  };
  const TemporaryDir dir;
  for (const Case& c :
       std::vector<Case>{{"F32", raw(1.5f) + raw(-0.0f) + raw(3e38f), {1.5f, -0.0f, 3e38f}},
                         {"BF16", u16({0x3fc0, 0xc000, 0x7f80}), {1.5f, -2.0f, infinity}},
                         {"F16",
                          u16({0x3e00, 0xc000, 0x7c00, 0xfc00, 0x0001, 0x83ff, 0x0400, 0x7bff, 0x8000}),
                          {1.5f, -2.0f, infinity, -infinity, 0x1p-24f, -1023 * 0x1p-24f, 0x1p-14f, 65504.0f, -0.0f}}}) {
    SCOPED_TRACE(c.dtype);
    for (int shift = 0; shift < 4; ++shift) {
      std::string header = fmt::format(R"({{"x":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", c.dtype,
                                       c.wanted.size(), c.data.size());
      header += std::string(static_cast<std::size_t>(shift), ' ');
      const Checkpoint checkpoint = Checkpoint::open(dir.write("a.safetensors", safetensors(header, c.data))).value();
      std::vector<float> out(c.wanted.size());
      ASSERT_TRUE(read_f32(*checkpoint.find("x"), out));
      EXPECT_EQ(std::memcmp(out.data(), c.wanted.data(), out.size() * sizeof(float)), 0);
    }
  }
  const Checkpoint nan =
      Checkpoint::open(dir.write("a.safetensors", one_tensor("x", "F16", "[1]", u16({0x7e01})))).value();
  std::array<float, 1> out;
  ASSERT_TRUE(read_f32(*nan.find("x"), out));
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(Read, RefusesOtherTypesAndCounts) {
  const TemporaryDir dir;
  const Checkpoint i64 =
      Checkpoint::open(dir.write("i.safetensors", one_tensor("x", "I64", "[1]", raw<std::int64_t>(-5)))).value();
  const Checkpoint f32 = Checkpoint::open(dir.write("f.safetensors", one_tensor("x", "F32", "[1]", raw(1.0f)))).value();
  std::array<float, 2> floats;
  std::array<std::int64_t, 2> integers;

  const Result<void> not_float = read_f32(*i64.find("x"), std::span(floats).first(1));
  ASSERT_FALSE(not_float);
  EXPECT_EQ(not_float.error().code, Errc::kUnsupported);
  EXPECT_NE(not_float.error().message.find("dtype I64, wanted F32, BF16, F16"), std::string::npos)
      << not_float.error().message;
  EXPECT_EQ(read_i64(*f32.find("x"), std::span(integers).first(1)).error().code, Errc::kUnsupported);
  EXPECT_EQ(read_f32(*f32.find("x"), floats).error().code, Errc::kMismatch);
  EXPECT_EQ(read_i64(*i64.find("x"), integers).error().code, Errc::kMismatch);
  ASSERT_TRUE(read_i64(*i64.find("x"), std::span(integers).first(1)));
  EXPECT_EQ(integers[0], -5);
  for (const auto& [unread, bytes] : {std::pair("F8_E5M2", 1), {"F8_E8M0", 1}, {"F64", 8}, {"I16", 2}, {"U32", 4}}) {
    const std::string data(static_cast<std::size_t>(bytes), '\0');
    const Checkpoint opened =
        Checkpoint::open(dir.write("u.safetensors", one_tensor("x", unread, "[1]", data))).value();
    const Result<void> used = read_f32(*opened.find("x"), std::span(floats).first(1));
    ASSERT_FALSE(used) << unread;
    EXPECT_NE(used.error().message.find(fmt::format("dtype {}, wanted F32", unread)), std::string::npos);
  }
}

TEST(Fingerprint, DependsOnNamesTypesShapesAndBytesOnly) {
  const TemporaryDir dir;
  const auto fingerprint = [&](std::string_view content) {
    return Checkpoint::open(dir.write("a.safetensors", content)).value().fingerprint();
  };
  const std::string data(65536, 'a');
  const std::uint64_t original = fingerprint(one_tensor("x", "U8", "[65536]", data));
  EXPECT_EQ(fingerprint(one_tensor("x", "U8", "[65536]", data)), original);
  EXPECT_NE(fingerprint(one_tensor("y", "U8", "[65536]", data)), original);
  EXPECT_NE(fingerprint(one_tensor("x", "I8", "[65536]", data)), original);
  EXPECT_NE(fingerprint(one_tensor("x", "U8", "[256,256]", data)), original);
  for (const std::size_t sampled : {0u, 4095u, 32768u, 65535u}) {
    std::string changed = data;
    changed[sampled] = 'b';
    EXPECT_NE(fingerprint(one_tensor("x", "U8", "[65536]", changed)), original) << sampled;
  }
}

// As in two containers, where each is process 1: what is beside the name may not be one process's number.
TEST(NewDirectory, OfTwoPackersAtOnceIsEachItsOwnAndTheFirstOnesStays) {
  const TemporaryDir dir;
  NewDirectory first = NewDirectory::create(dir / "x").value(), second = NewDirectory::create(dir / "x").value();
  EXPECT_NE(first.path(), second.path());
  ASSERT_TRUE(first.add_file("config.json", "first"));
  ASSERT_TRUE(second.add_file("config.json", "second"));
  ASSERT_TRUE(first.commit());
  EXPECT_FALSE(second.commit());
  EXPECT_EQ(read_text(dir / "x/config.json").value(), "first");
}

TEST(NewDirectory, NeedsNoLocks) {
  const TemporaryDir dir;
  no_locks = true;
  std::optional<NewDirectory> first(NewDirectory::create(dir / "x").value());
  NewDirectory second = NewDirectory::create(dir / "x").value();
  ASSERT_TRUE(first->add_file("f", "1")) << "the second has not removed the first one's folder";
  ASSERT_TRUE(first->commit());
  no_locks = false;
  EXPECT_EQ(read_text(dir / "x" / "f").value(), "1");
  EXPECT_FALSE(second.commit());
}

TEST(NewDirectory, ThatIsNotCommittedLeavesNothing) {
  const TemporaryDir dir;
  for (const auto& name : {dir / "deep/er/x", dir / "deep/er/y/"}) {
    NewDirectory created = NewDirectory::create(name).value();
    ASSERT_TRUE(created.add_file("config.json", "{}"));
  }
  EXPECT_TRUE(fs::is_empty(dir / "deep/er"));
}

TEST(Fingerprint, IsTheSameOnEveryMachineAndForEverySharding) {
  const TemporaryDir dir;
  const std::string x = raw(1.0f), y = raw(2.0f);
  dir.write("x.safetensors", one_tensor("x", "F32", "[1]", x));
  dir.write("y.safetensors", one_tensor("y", "F32", "[1]", y));
  dir.write(kIndex, R"({"weight_map":{"x":"x.safetensors","y":"y.safetensors"}})");
  const std::uint64_t sharded = Checkpoint::open(dir.path()).value().fingerprint();
  const std::string whole = safetensors(
      R"({"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      y + x);
  EXPECT_EQ(Checkpoint::open(dir.write("whole.safetensors", whole)).value().fingerprint(), sharded);
  // Two nodes compare this number, perhaps of two releases: it must not change by accident.
  EXPECT_EQ(sharded, 14197521608449307369ull);
}

}  // namespace
}  // namespace outrider
