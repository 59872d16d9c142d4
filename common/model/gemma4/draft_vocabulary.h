#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace outrider {

/// The tokens that an assistant scores (FR-Spec, arXiv 2502.14856): a head of 262,144 rows is most of a draft step, and
/// texts use few of them. A file of it has one id a line, that which texts use most first; `outrider
/// draft-vocabulary` makes one. What is left out is never drafted, which costs acceptance and never changes a text.
inline constexpr char kDraftVocabularyFile[] = "draft_vocabulary.txt";

/// @param wanted  "all"; a number N: the first N ids of kDraftVocabularyFile in `assistant`, or beside it if it is a
///   file; else a file's path. @return none for "all"; distinct ids below vocab_size. Errors name file, line and
///   value.
Result<std::vector<TokenId>> draft_vocabulary(const std::string& wanted, const std::filesystem::path& assistant,
                                              std::int64_t vocab_size);

}  // namespace outrider
