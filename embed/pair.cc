#include "embed/pair.h"

#include <spdlog/spdlog.h>

#include "common/kernels/isa.h"

namespace outrider {

Result<std::shared_ptr<Pair>> Pair::load_text(const std::filesystem::path& backbone) {
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(backbone));
  ASSIGN_OR_RETURN(TextSide text, TextSide::load(files));
  if (!text.chat_format.warning.empty()) {
    spdlog::warn("event=chat_format_guessed note=\"{}\"", text.chat_format.warning);
  }
  return std::shared_ptr<Pair>(new Pair(std::move(text)));
}

Result<std::shared_ptr<Pair>> Pair::open_local(const PairPaths& paths, WeightType type, int threads) {
  active_isa();  // a bad OUTRIDER_ISA or OUTRIDER_GEMM is said here, not on some thread
  active_gemm();
  ASSIGN_OR_RETURN(std::shared_ptr<Pair> pair, load_text(paths.backbone));
  const bool drafter = !paths.assistant.empty();
  ASSIGN_OR_RETURN(
      ClusterClient started,
      connect_or_start(
          pair->context_, /*connect=*/"",
          {.pair = paths, .weight_type = type, .drafters = drafter ? 1 : 0, .verifier = {.threads = threads}}));
  pair->cluster_ = std::move(started.cluster);
  pair->address_ = pair->cluster_->address();
  return pair;
}

Result<std::shared_ptr<Pair>> Pair::open_remote(const std::string& address, const std::filesystem::path& backbone) {
  ASSIGN_OR_RETURN(std::shared_ptr<Pair> pair, load_text(backbone));
  pair->address_ = address;
  ASSIGN_OR_RETURN(Client client, pair->connect());
  RETURN_IF_ERROR(client.wait_for_workers(0, 0, [] { return Result<void>(); }));
  return pair;
}

Result<Client> Pair::connect() { return Client::connect(context_, address_); }

Result<Generation> Pair::generate_speculative(const Generate& request,
                                              const std::function<bool(std::span<const TokenId>)>& on_tokens) {
  ASSIGN_OR_RETURN(Client client, connect());
  Generation stopped;
  stopped.cancelled = true;
  bool goes_on = true;
  const auto deliver = [&](std::span<const TokenId> tokens) {
    if (!goes_on) return;  // was on its way
    stopped.tokens.insert(stopped.tokens.end(), tokens.begin(), tokens.end());
    goes_on = on_tokens(tokens);
  };
  Result<Generation> generation = client.generate(request, deliver, [&] { return !goes_on; });
  return goes_on ? std::move(generation) : Result<Generation>(std::move(stopped));
}

Result<std::unique_ptr<PairSession>> PairSession::open(std::shared_ptr<Pair> pair) {
  ASSIGN_OR_RETURN(Client client, pair->connect());
  return std::unique_ptr<PairSession>(new PairSession(std::move(pair), std::move(client)));
}

Result<TokenId> PairSession::decode_one() {
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, client_.verify({}));
  return tokens[0];
}

Result<PairSession::Verified> PairSession::verify_tokens(std::span<const TokenId> drafts) {
  ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, client_.verify({drafts.begin(), drafts.end()}));
  return Verified{static_cast<std::int32_t>(tokens.size()) - 1, tokens.back()};
}

}  // namespace outrider
