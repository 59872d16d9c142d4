#include "lab/in_process_pair.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/compute/kernels/ops.h"
#include "common/decoding/sampling/sampler.h"

namespace outrider {

std::vector<std::span<const TokenId>> prefill_chunks(std::span<const TokenId> prompt, std::span<const SoftRows> soft) {
  std::vector<std::span<const TokenId>> chunks;
  for (std::int64_t begin = 0, end = 0; begin < std::ssize(prompt); begin = end) {
    end = std::min(begin + kRowsMax, std::ssize(prompt));
    for (const SoftRows& rows : soft) {
      if (rows.both_ways && rows.first < end && end < rows.end()) end = rows.first > begin ? rows.first : rows.end();
    }
    chunks.push_back(prompt.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  }
  return chunks;
}

std::vector<std::vector<TokenId>> text_windows(TokenId bos, std::span<const TokenId> text) {
  std::vector<TokenId> all(1, bos);
  all.insert(all.end(), text.begin(), text.end());
  std::vector<std::vector<TokenId>> windows;
  for (auto at = all.begin(); all.end() - at >= kTextWindow; at += kTextWindow) {
    windows.emplace_back(at, at + kTextWindow);
    windows.back().front() = bos;
  }
  return windows;
}

InProcessPair::InProcessPair(Backbone& backbone, Assistant* assistant)
    : backbone_(backbone), assistant_(assistant), cache_(backbone.make_cache()) {
  if (assistant_ != nullptr) replica_.emplace(assistant_->make_replica());
}

const Backbone::Output& InProcessPair::forward(std::span<const TokenId> rows, std::int64_t output_rows,
                                               const Trace& trace, std::span<const SoftRows> soft) {
  const Segment segment{&cache_, rows, output_rows, soft};
  return output_.emplace(backbone_.forward({&segment, 1}, trace));
}

void InProcessPair::prefill(std::span<const TokenId> prompt, const Trace& trace, std::span<const SoftRows> soft) {
  CHECK(!prompt.empty());
  std::int64_t begin = 0;
  for (const std::span<const TokenId> chunk : prefill_chunks(prompt, soft)) {
    const std::int64_t end = begin + std::ssize(chunk);
    forward(chunk, end == std::ssize(prompt) ? 1 : 0, trace, soft_rows_within(soft, begin, end));
    follow();  // while the rings still have the chunk's rows
    begin = end;
  }
  keep(0, static_cast<TokenId>(argmax(output_->logits[0].span())));
}

std::vector<TokenId> InProcessPair::draft(std::int64_t count, std::span<const TokenId> stop_ids) {
  return assistant_->draft({token_, hidden_, *replica_, count, stop_ids});
}

const Backbone::Output& InProcessPair::verify(std::span<const TokenId> drafts, const Trace& trace) {
  rows_.assign({token_});
  rows_.insert(rows_.end(), drafts.begin(), drafts.end());
  return forward(rows_, std::ssize(rows_), trace);
}

void InProcessPair::keep(std::int64_t row, TokenId next) {
  const std::span<const float> hidden = output_->hidden[row].span();
  hidden_.assign(hidden.begin(), hidden.end());
  token_ = next;
  truncate(length() - (output_->hidden.size(0) - 1 - row));
  follow();
}

InProcessPair::Round InProcessPair::round(std::int64_t draft_length, std::span<const TokenId> stop_ids) {
  Round result;
  if (draft_length > 0) result.tokens = draft(draft_length, stop_ids);
  result.drafted = std::ssize(result.tokens);
  const Backbone::Output& output = verify(result.tokens);
  SamplingScratch scratch;
  const VerifyOutcome outcome = Sampler({}, {}, 0).verify(output.logits, rows_, scratch).value();
  keep(outcome.accepted, outcome.next_token);
  result.accepted = outcome.accepted;
  result.tokens.resize(static_cast<std::size_t>(outcome.accepted));
  result.tokens.push_back(outcome.next_token);
  return result;
}

void InProcessPair::follow() {
  if (replica_) replica_->extend(backbone_, cache_, length());
}

}  // namespace outrider
