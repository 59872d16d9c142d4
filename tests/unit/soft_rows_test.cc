// Soft tokens among a text's rows: the logits of pictures and sounds, the greedy text and the masks of pictures,
// against Hugging Face's (multimodal-e4b) and the numpy reference's (picture.json, and picture.safetensors of
// dense-31b).
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/compute/kernels/ops.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/gemma4/backbone.h"
#include "common/os/files.h"
#include "tests/support/model_at.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

constexpr std::int64_t kRowsMax = 64;
fs::path goldens() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens"; }

/// A golden tensor of two axes, or of one more that is 1.
Tensor matrix(const Checkpoint& golden, const std::string& name) {
  const TensorEntry& entry = *golden.find(name);
  const std::int64_t columns = entry.shape.back();
  Tensor values(entry.element_count() / columns, columns);
  EXPECT_TRUE(read_f32(entry, {values.view().data(), static_cast<std::size_t>(entry.element_count())}));
  return values;
}
std::vector<std::int64_t> integers(const Checkpoint& golden, const std::string& name) {
  const TensorEntry& entry = *golden.find(name);
  std::vector<std::int64_t> values(static_cast<std::size_t>(entry.element_count()));
  EXPECT_TRUE(read_i64(entry, values));
  return values;
}

/// A backbone in float32, a prompt with soft tokens, and the logits of every row.
struct Golden {
  Golden(const char* folder, const char* file, const std::string& prefix)
      : golden(Checkpoint::open(goldens() / folder / file).value()),
        backbone(Backbone::load(model_at(goldens() / folder / "backbone"), WeightType::kF32, kRowsMax).value()),
        logits(matrix(golden, prefix + "logits")) {
    for (const std::int64_t id : integers(golden, prefix + "input_ids")) prompt.push_back(static_cast<TokenId>(id));
  }

  /// Rows [begin, end) of the prompt continue the cache. @return their logits, softcapped as the golden's
  Tensor forward(KvCache& cache, std::int64_t begin, std::int64_t end) {
    const std::vector<SoftRows> within = soft_rows_within(soft, begin, end);
    const Segment segment{
        &cache, std::span(prompt).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        end - begin, within};
    const Matrix<const float> seen = backbone->forward({&segment, 1}).logits;
    Tensor copy(seen.size(0), seen.size(1));
    std::copy_n(seen.data(), seen.size(0) * seen.size(1), copy.view().data());
    softcap_in_place(copy.view(), backbone->config().final_logit_softcapping);
    return copy;
  }
  Tensor forward_all() {
    KvCache cache = backbone->make_cache();
    return forward(cache, 0, std::ssize(prompt));
  }

  Checkpoint golden;
  std::unique_ptr<Backbone> backbone;
  std::vector<TokenId> prompt;
  Tensor logits;
  std::vector<SoftRows> soft;
};

double relative_error(const Tensor& ours, const Tensor& theirs) {
  EXPECT_EQ(ours.rows(), theirs.rows());
  double error = 0, largest = 0;
  for (std::int64_t i = 0; i < ours.rows() * ours.columns(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(ours.view().data()[i]) - theirs.view().data()[i]));
    largest = std::max(largest, std::abs(static_cast<double>(theirs.view().data()[i])));
  }
  return error / largest;
}

/// A text of multimodal-e4b, whose picture's or sound's rows are those that Hugging Face's tower made.
struct E4b : Golden {
  explicit E4b(const char* text = "image.", const char* soft_tokens = "vision.soft_tokens")
      : Golden("multimodal-e4b", "golden.safetensors", text), rows(matrix(golden, soft_tokens)) {
    soft = {{.first = 3, .values = rows.view(), .both_ways = false}};
  }
  Tensor rows;
};
/// Two pictures in the text of dense-31b, whose sliding layers see them both ways.
struct Dense31b : Golden {
  Dense31b() : Golden("dense-31b", "picture.safetensors", ""), rows(matrix(golden, "rows")) {
    const std::vector<std::int64_t> pictures = integers(golden, "pictures");
    for (std::size_t i = 0; i < pictures.size(); i += 2) {
      soft.push_back({.first = pictures[i],
                      .values = rows.view().rows(pictures[i], pictures[i + 1] - pictures[i]),
                      .both_ways = true});
    }
  }
  Tensor rows;
};

TEST(SoftRows, LogitsEqualHuggingFaces) {
  E4b picture, sound("audio.", "audio.soft_tokens");
  for (E4b* const e4b : {&picture, &sound}) {
    EXPECT_LT(relative_error(e4b->forward_all(), e4b->logits), 1e-4);
    e4b->soft.clear();
    EXPECT_GT(relative_error(e4b->forward_all(), e4b->logits), 1e-2) << "the golden would not tell";
  }
}

TEST(SoftRows, PicturesAreSeenBothWaysInSlidingLayersWhereTheModelSaysSo) {
  Dense31b dense;
  EXPECT_LT(relative_error(dense.forward_all(), dense.logits), 1e-4);
  for (SoftRows& rows : dense.soft) rows.both_ways = false;
  EXPECT_GT(relative_error(dense.forward_all(), dense.logits), 1e-2) << "the golden would not tell";
}

// Rows depend on their text alone, so pieces of a prompt give the bits of the whole.
TEST(SoftRows, APromptInPiecesGivesTheSameBits) {
  E4b e4b;
  Dense31b dense;
  const auto expect_same = [](Golden& golden, std::vector<std::int64_t> ends) {
    const Tensor whole = golden.forward_all();
    KvCache cache = golden.backbone->make_cache();
    std::int64_t begin = 0;
    for (const std::int64_t end : ends) {
      const Tensor piece = golden.forward(cache, begin, end);
      const float* const expected = whole.view()[begin].data();
      EXPECT_TRUE(std::equal(expected, expected + piece.rows() * piece.columns(), piece.view().data())) << begin;
      begin = end;
    }
    EXPECT_EQ(begin, std::ssize(golden.prompt));
  };
  expect_same(e4b, {5, 6, 14});         // within the picture
  expect_same(dense, {3, 17, 30, 40});  // around the pictures
}

// The greedy text, plain and with drafts of which some hold: what a picture changes ends with the prompt.
TEST(SoftRows, TheTextAfterAPictureIsTheReferencesWithAndWithoutDrafts) {
  E4b e4b;
  const auto notes = nlohmann::json::parse(read_text(goldens() / "multimodal-e4b/picture.json").value());
  const auto greedy = notes["greedy"].get<std::vector<TokenId>>();
  for (const std::size_t drafts : {0u, 3u}) {
    KvCache cache = e4b.backbone->make_cache();
    const Tensor prompt = e4b.forward(cache, 0, std::ssize(e4b.prompt));
    std::vector<TokenId> text = {static_cast<TokenId>(argmax(prompt.view()[prompt.rows() - 1].span()))};
    while (text.size() < greedy.size()) {
      std::vector<TokenId> rows = {text.back()};
      for (std::size_t i = 0; i < drafts && text.size() + i < greedy.size(); ++i)
        rows.push_back(i == 1 ? TokenId{7} : greedy[text.size() + i]);  // the second is wrong, as a rule
      const Segment segment{&cache, rows, std::ssize(rows)};
      const Matrix<const float> logits = e4b.backbone->forward({&segment, 1}).logits;
      std::int64_t kept = 0;
      for (bool holds = true; holds; ++kept) {
        text.push_back(static_cast<TokenId>(argmax(logits[kept].span())));
        holds = kept + 1 < std::ssize(rows) && rows[static_cast<std::size_t>(kept) + 1] == text.back();
      }
      cache.truncate(cache.length() - (std::ssize(rows) - kept));
    }
    text.resize(greedy.size());
    EXPECT_EQ(text, greedy) << drafts << " drafts";
  }
}

}  // namespace
}  // namespace outrider
