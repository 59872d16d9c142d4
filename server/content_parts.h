#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/json_fields.h"
#include "common/base/result.h"
#include "common/media/media_prompt.h"
#include "common/model/tokenizer/chat.h"

// Parts of a message's content that are not text: what OpenAI's chat completions call image_url and input_audio, and
// vLLM audio_url and video_url; and the pictures of Responses and Messages, which say the same in other words.

namespace outrider {

/// Base64 as browsers forgive it (WHATWG): white space anywhere, and no padding or all of it.
/// @return kOutOfRange for more than kMediumBytesMax; kMalformed for anything else.
Result<std::string> decode_base64(std::string_view text);

/// The bytes of a URL like data:image/png;base64,iVBORw0K; what stands before the comma knows no case.
/// @return kUnsupported for another kind of URL, or as decode_base64(). The message says what the URL is, without
///   repeating it.
Result<std::string> bytes_of_data_url(std::string_view url);

/// @return whether a part of this type is a picture, a video or a sound.
bool is_medium(std::string_view type);

/// Reads such a part (@pre is_medium(type)); the first thing that is wrong with it is named. Its place in the message
/// is a part of `message`, its file the next of `media`: its bytes, or its http(s) URL, of which nothing is fetched
/// here.
void read_medium(const std::string& type, const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media);

/// Reads a picture as another API writes it.
/// @param url  the key of its URL; null: its file is under `data`
/// @param name  for messages
void read_picture(const JsonFields& fields, const char* url, const std::string& name, ChatMessage& message,
                  std::vector<MediumFile>& media);

}  // namespace outrider
