#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace outrider {

/// File of the tokens that an assistant scores (FR-Spec, arXiv 2502.14856): a head of 262,144 rows takes most of a
/// draft step, and few tokens are in frequent use. It has one id a line, the most frequent first; `outrider
/// draft-vocabulary` makes one. Omitted tokens are never drafted, which lowers acceptance but changes no answer.
inline constexpr char kDraftVocabularyFile[] = "draft_vocabulary.txt";

/// @param wanted  "all"; a number N: the first N ids of kDraftVocabularyFile in `assistant`, or beside it if it is a
/// file; else a file's path
/// @return none for "all"; distinct ids below vocab_size. Errors name file, line and value.
Result<std::vector<TokenId>> draft_vocabulary(const std::string& wanted, const std::filesystem::path& assistant,
                                              std::int64_t vocab_size);

}  // namespace outrider
