#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// A text at a draft model: the committed rows that the model drafts from.
class DraftText {
 public:
  virtual ~DraftText() = default;
  /// Appends rows, which may begin before its end. @pre check_rows() likes them, for what the model needs
  virtual void extend(const KvRows& rows) = 0;
  /// Committed rows that it has.
  virtual Position length() const = 0;
  /// Of these, those of which steps have yet to compute K/V.
  virtual std::int64_t behind() const { return 0; }
};

/// Where a draft is wanted: behind a text's rows and `path`.
struct DraftPoint {
  DraftText* text;
  std::vector<TokenId> path;     ///< from the token behind the rows on; empty: K/V of the rows are all that is wanted
  std::span<const float> state;  ///< as VisitPoint gave it for the path without its last token, or the target's row
  bool goes_on = true;           ///< its own state is wanted
  std::int64_t wanted = 1;       ///< so many tokens are wanted behind the path, this point's included
  /// The token that a guess with these scores stands for, behind the path and `guessed`. Null: the likeliest.
  std::function<TokenId(std::span<const TokenId> guessed, std::span<const TokenId> ids, std::span<const float> scores)>
      choose = {};
};
/// What the model says there: the scores of `ids`, or of the whole vocabulary in order if there are none; and the state
/// from which it goes on after any of them, empty where it has none or none is wanted.
/// @return the next token of the path: a model that knows what follows that token visits the point again. Empty: no
///   more is wanted of this pass
using VisitPoint = std::function<std::optional<TokenId>(std::size_t point, std::span<const TokenId> ids,
                                                        std::span<const float> scores, std::span<const float> state)>;

/// What the engine has to know of a family of draft models.
struct DraftTraits {
  DraftInput needs = DraftInput::kTargetRows;
  /// What it says after a path depends on the tokens alone, and not on where the round began: once said it stays true
  /// when the text has come to the path's middle. Of such a text one step takes one point.
  bool by_tokens_alone = false;
  /// Most drafts on a path, and none are made ahead: a block of so many is one pass, and longer paths have no scores.
  /// 0: there is no such bound.
  std::int32_t block = 0;
};

/// A model that drafts: a family of them is a folder here, and a row in families.cc. Used by one thread.
class DraftModel {
 public:
  virtual ~DraftModel() = default;
  virtual DraftTraits traits() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual std::unique_ptr<DraftText> open() const = 0;
  /// Of the K/V that it computes for a text.
  virtual KvCost kv_cost() const { return {}; }
  /// One forward pass. Each point gets the bits that it gets alone. One is not visited, and may come again, where its
  /// text is still behind or the pass has no room for it.
  /// @return false where it took no pass, because all was known from an earlier one
  virtual bool step_each(std::span<const DraftPoint> points, const VisitPoint& visit) = 0;
};

}  // namespace outrider
