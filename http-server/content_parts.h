#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/json_fields.h"
#include "common/base/result.h"
#include "common/media_prompt/media_prompt.h"
#include "common/tokenizer/chat.h"

// Parts of a message's content that are not text: what OpenAI's chat completions call image_url and input_audio, and
// vLLM video_url. Responses and Messages say the same in other words, and are made of it.

namespace outrider {

/// The bytes of a URL like data:image/png;base64,iVBORw0K. Nothing is fetched from anywhere.
/// @return kUnsupported for another kind of URL; kOutOfRange for more than kMediumBytesMax; kMalformed for what is not
///   base64 (RFC 4648, with its padding). The message says what the URL is, without repeating it.
Result<std::string> bytes_of_data_url(std::string_view url);

/// Reads a part of type image_url; the first thing that is wrong with it is named. Its place in the message is a part
/// of `message`, its file the next of `media`.
void read_image_url(const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media);

/// The same of type input_audio. What its bytes are, they say themselves.
void read_input_audio(const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media);

/// The same of type video_url: a file, or pictures one for every second, as data:video/jpeg;base64,A,B,C.
void read_video_url(const JsonFields& part, ChatMessage& message, std::vector<MediumFile>& media);

/// What an image of another API is as a part of a chat completion.
nlohmann::json image_url_part(nlohmann::json url, nlohmann::json detail = nullptr);

}  // namespace outrider
