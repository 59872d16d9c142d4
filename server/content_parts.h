#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/json_fields.h"
#include "common/base/result.h"
#include "common/media/media_prompt.h"
#include "common/model/tokenizer/chat.h"

// Reads the media in a message's content: image_url and input_audio of OpenAI's chat completions, audio_url and
// video_url of vLLM; and the pictures of Responses and Messages, which have other keys.

namespace outrider {

/// Decodes base64 as leniently as browsers (WHATWG): white space anywhere, and no padding or all of it.
/// @return kOutOfRange for more than kMediumBytesMax; kMalformed for anything else
Result<std::string> decode_base64(std::string_view text);

/// Returns the bytes of a URL such as data:image/png;base64,iVBORw0K; the part before the comma is case-insensitive.
/// @return kUnsupported for another kind of URL, or as decode_base64(). The message describes the URL without repeating
/// it
Result<std::string> bytes_of_data_url(std::string_view url);

/// @return true if a part of this type is a picture, a video or a sound
bool is_medium(std::string_view type);

/// Reads such a part (@pre is_medium(type)); reports its first error. Appends its placeholder to `message`, and its
/// file to `media`: its bytes, or its http(s) URL, which is not fetched here.
void read_medium(const std::string& type, const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media);

/// Reads a picture in another API's form.
/// @param url  the key of its URL; null: its file is under `data`
/// @param name  for messages
void read_picture(const JsonFields& fields, const char* url, const std::string& name, ChatMessage& message,
                  std::vector<MediumFile>& media);

}  // namespace outrider
