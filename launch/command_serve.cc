#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "batch/batch_api.h"
#include "common/base/complain.h"
#include "common/base/time.h"
#include "common/model/gemma4/lent_backbone.h"
#include "common/os/logging.h"
#include "common/wire/transport/address.h"
#include "drafter-node/drafter_node.h"
#include "launch/answer_flags.h"
#include "launch/answered_by.h"
#include "launch/cluster_flags.h"
#include "launch/interrupt.h"
#include "launch/local_cluster.h"
#include "launch/model_flags.h"
#include "server/api_keys.h"
#include "server/api_server.h"
#include "server/dialect.h"
#include "server/http_server.h"
#include "server/media_fetcher.h"
#include "server/server_metrics.h"
#include "server/tracer.h"
#include "server/web_guard.h"

namespace outrider {
namespace {

struct ServeFlags {
  ModelFlags model;
  ClusterFlags cluster;
  std::string name, metrics_prefix = MetricsOptions().prefix;
  HttpOptions http{.port = 8000};
  std::string api_key;
  std::filesystem::path api_keys, tls_certificate, tls_key;
  DraftLengthFlag draft_length;
  std::string drafts_for;              ///< another cluster's coordinator; empty: none
  std::filesystem::path data_dir;      ///< empty: no files, no batches
  std::uint64_t data_mib_max = 10240;  ///< of files in data_dir
  bool share_prefixes = false;
  bool strict_fields = false;
  int drain_wait_s = 5;  ///< for open requests once the program is asked to end
  std::vector<std::string> media_domains;  ///< from which pictures, videos and sounds are fetched
  TraceOptions traces;
};

/// Watches the drafter of our own cluster. If a requested drafter cannot join, the program ends; a drafter that ends
/// later only costs speed.
class DrafterWatch {
 public:
  explicit DrafterWatch(bool asked_for) : must_join_(asked_for) {}
  bool ended() const { return ended_; }

  void check(Cluster& cluster, const ApiServer& api) {
    if (ended_) return;
    if (must_join_) {
      const Result<Status> status = api.status();
      must_join_ = !status || status->verifiers == 0 ||
                   status->drafters == 0;  // a verifier that joins may still show that it does not fit
    }
    const Result<void> runs = cluster.check_drafter();
    if (runs) return;
    if (must_join_) or_throw(runs);
    ended_ = true;
    complain("continuing without a drafter: {}", runs.error().message);
  }

 private:
  bool must_join_, ended_ = false;
};

bool is_ready(const ApiServer& api, int drafters) {
  const Result<Status> status = api.status();
  return status && status->verifiers > 0 && status->drafters >= drafters;
}

/// Null: open to everyone.
std::shared_ptr<ApiKeys> keys_of(const ServeFlags& flags) {
  if (!flags.api_keys.empty()) return or_throw(ApiKeys::load(flags.api_keys));
  if (!flags.api_key.empty()) return ApiKeys::of(flags.api_key);
  const char* const of_environment = std::getenv("OUTRIDER_API_KEY");
  if (of_environment == nullptr) return nullptr;
  if (*of_environment == '\0') throw CommandError("OUTRIDER_API_KEY is empty, wanted a key, or no such variable");
  return ApiKeys::of(of_environment);
}

/// A check for Option::check.
std::string check_metrics_prefix(const std::string& text) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  const bool good = !text.empty() && is_letter(text[0]) &&
                    std::ranges::all_of(text, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
  return good ? "" : "'" + text + "', wanted letters, digits and _, a digit not first";
}

/// A check for Option::check.
std::string check_root_path(const std::string& path) {
  return path.starts_with('/') && !path.ends_with('/') ? "" : "'" + path + "', wanted a path as /llm";
}

/// A check for Option::check.
std::string check_api_key(const std::string& key) { return key.empty() ? "it is empty" : ""; }

/// @param domains  none: nothing is fetched
FetchMedium fetched_from(const std::vector<std::string>& domains) {
  return domains.empty() ? FetchMedium() : or_throw(fetch_from(domains));
}

/// @param tracer  null: none
std::function<void(RequestTrace)> traced_by(Tracer* tracer) {
  if (tracer == nullptr) return {};
  return [tracer](RequestTrace trace) { tracer->record(std::move(trace)); };
}

/// Null: no traces.
std::unique_ptr<Tracer> tracer_of(TraceOptions options, const std::string& model) {
  if (!options.on()) return nullptr;
  options.server = node_name("serve");
  options.model = model;
  options.version = OUTRIDER_VERSION;
  return or_throw(Tracer::start(options));
}

/// Drafts for flags.drafts_for until the thread is stopped. @param backbone  of `lent`; both outlive the thread
std::jthread drafting_for_another(const ServeFlags& flags, TransportContext& context, LentBackbone& lent,
                                  const std::filesystem::path& backbone) {
  or_throw(Endpoint::connect(context, flags.drafts_for));  // now, so that a wrong address ends the program
  const DrafterOptions options{.draft_model = backbone,
                               .lent = &lent,
                               .join = flags.drafts_for,
                               .threads = flags.cluster.cluster.verifier.threads};
  return std::jthread([options, &context](std::stop_token stop) {
    const Result<void> ended = no_throw([&] { return run_drafter(context, options, stop); });
    if (!ended) complain("stopped drafting for {}: {}", options.join, ended.error().message);
  });
}

/// Null: none are kept. @param answer  to their requests
std::unique_ptr<BatchApi> open_batches(const ServeFlags& flags, const PairPaths& pair, const std::string& name,
                                       BatchAnswer answer) {
  if (flags.data_dir.empty()) return nullptr;
  const bool here = flags.cluster.connect.empty();
  // Half of the running sequences are reserved for interactive clients.
  const int places = here ? flags.cluster.cluster.coordinator.requests_max : 0;
  return or_throw(BatchApi::open({.dir = flags.data_dir,
                                  .bytes_max = flags.data_mib_max << 20,
                                  .made_by = answered_by(flags.model, pair, name, here),
                                  .model = name,
                                  .concurrency = places > 0 ? std::max(1, places / 2) : 0,
                                  .answer = std::move(answer),
                                  .keys = flags.http.keys,
                                  .memory = flags.http.memory}));
}

/// Waits until the program is asked to end, or cannot continue. @param cluster  null: the coordinator is elsewhere
void watch(const Interrupt& interrupt, const ApiServer& api, Cluster* cluster, int drafters, bool drafter_asked_for) {
  DrafterWatch drafter(drafter_asked_for);
  const TimePoint started = now();
  bool ready = cluster == nullptr;  // otherwise reported when it is
  while (!interrupt.requested()) {
    if (!ready && (ready = is_ready(api, drafter.ended() ? 0 : drafters))) {
      std::printf("ready in %.1f s\n", to_seconds(now() - started));
      std::fflush(stdout);
    }
    if (cluster != nullptr) {
      or_throw(cluster->check());
      if (drafters > 0) drafter.check(*cluster, api);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string address_of(const HttpOptions& http, int port) {
  const bool v6 = http.host.find(':') != http.host.npos;
  return fmt::format("{}:{}", v6 ? "[" + http.host + "]" : http.host, port);
}

/// Applies the rule of all listening sockets (docs/security.md): a client on another machine needs a key, unless
/// --insecure is given.
void check_who_may_ask(const HttpOptions& http, bool insecure) {
  const std::string address = address_of(http, http.port);
  if (http.keys != nullptr || is_local("tcp://" + address)) return;
  if (!insecure)
    throw std::runtime_error(
        fmt::format("other machines can reach {}, but there is no key: wanted --api-key KEY (or OUTRIDER_API_KEY) or "
                    "--api-keys FILE, or --insecure to serve without keys (docs/http.md)",
                    address));
  log_warn("event=insecure address={} reason=\"--insecure: anybody can use the server (docs/http.md)\"", address);
}

/// Prints the answering model, the page for a browser, and whether clients need a key.
void print_endpoint(const std::string& who, const HttpOptions& http, int port) {
  const bool everywhere = http.host == "0.0.0.0" || http.host == "::";
  const std::string host = everywhere                              ? "localhost"
                           : http.host.find(':') != http.host.npos ? "[" + http.host + "]"
                                                                   : http.host;
  std::printf("model: %s\npage: %s://%s:%d%s/\nkey: %s\n", who.c_str(), http.tls ? "https" : "http", host.c_str(), port,
              http.root_path.c_str(), http.keys == nullptr ? "none" : "wanted");
  std::fflush(stdout);
}

void serve(ServeFlags flags) {
  init_logging("outrider", "warn");
  raise_file_limit();
  if (flags.traces.share < 1 && !flags.traces.on())
    throw UsageError("--trace-share needs --trace, --perfetto or --otlp");
  const Security& security = flags.cluster.security;
  const bool stays_here = flags.cluster.connect.empty() && flags.drafts_for.empty();
  if (stays_here && !(security.key.empty() && security.coordinator_keys.empty()))
    throw UsageError("--key and --coordinator-key need --connect or --drafts-for");
  std::string& host = flags.http.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);  // as in a URL
  flags.http.keys = keys_of(flags);
  check_who_may_ask(flags.http, flags.cluster.security.insecure);
  if (!flags.tls_key.empty()) flags.http.tls = or_throw(TlsIdentity::load(flags.tls_certificate, flags.tls_key));
  const PairPaths pair = flags.model.pair(flags.cluster.need());
  const DraftLength draft_length = flags.draft_length.value();
  TextSide text = load_text_side(open_model(pair.backbone));
  if (text.context_max == 0) throw CommandError("{}: has no config.json", pair.backbone.string());

  TransportContext context(flags.cluster.security);
  LentBackbone lent;
  if (!flags.drafts_for.empty()) flags.cluster.cluster.verifier.lent = &lent;
  std::unique_ptr<Cluster> cluster;
  // A request may want drafts even if --draft-length does not.
  const bool drafts_by_default = draft_length.length > 0;
  const ClusterOptions cluster_options =
      flags.cluster.options(flags.model, pair, drafts_by_default || flags.cluster.can_draft(pair));
  const std::string who = answering_text(flags.model, pair, flags.cluster, cluster_options, flags.draft_length);
  if (flags.cluster.connect.empty())
    cluster = or_throw(start_cluster(context, cluster_options));
  else
    or_throw(split_addresses(flags.cluster.connect));  // now, and not with each request
  std::jthread lending;
  if (!flags.drafts_for.empty()) lending = drafting_for_another(flags, context, lent, pair.backbone);
  const std::string name = flags.name.empty() ? served_name(pair.backbone) : flags.name;
  const std::unique_ptr<Tracer> tracer = tracer_of(flags.traces, name);
  ServerMetrics metrics({.prefix = flags.metrics_prefix, .model = name, .version = OUTRIDER_VERSION});
  ApiServer api(context, std::move(text),
                {.coordinator = cluster ? cluster->address() : flags.cluster.connect,
                 .version = OUTRIDER_VERSION,
                 .model = name,
                 .draft_length = draft_length,
                 .share_prefixes = flags.share_prefixes,
                 .strict_fields = flags.strict_fields,
                 .governed = !flags.draft_length.no_governor,
                 .failover_wait = std::chrono::seconds(flags.cluster.cluster.coordinator.failover_wait_s),
                 .own = cluster != nullptr,
                 .fetch = fetched_from(flags.media_domains),
                 .on_traced = traced_by(tracer.get()),
                 .on_finished = [&](const FinishedRequest& request) { metrics.record(request); }});
  std::vector<HttpRoute> routes = api.routes();
  const auto add = [&](const std::vector<HttpRoute>& more) { routes.insert(routes.end(), more.begin(), more.end()); };
  const ChatBackend backend = api.backend();
  add(responses_routes(backend));
  add(llama_routes(api));
  add(messages_routes(backend));
  add(transcription_routes(backend));
  flags.http.memory = memory_of(flags.http);
  const std::unique_ptr<BatchApi> batches = open_batches(flags, pair, name, answer_by(routes));
  if (batches) add(batches->routes());
  routes.push_back({"GET", "/metrics", [&](const HttpRequest&) { return metrics.reply(api.status()); }});
  routes.push_back(live_page());
  flags.http.traces = tracer != nullptr;
  flags.http.on_response = [&](int status) { metrics.record_response(status); };
  std::optional<Interrupt> interrupt(std::in_place, /*also_sigterm=*/true);
  const std::unique_ptr<HttpServer> http = or_throw(HttpServer::start(flags.http, std::move(routes)));
  std::printf("listening at %s://%s\n", flags.http.tls ? "https" : "http",
              address_of(flags.http, http->port()).c_str());
  std::fflush(stdout);
  print_endpoint(who, flags.http, http->port());
  watch(*interrupt, api, cluster.get(), cluster_options.drafters, drafts_by_default);
  interrupt.reset();  // a second signal ends the program at once
  lending = {};
  http->stop(std::chrono::seconds(flags.drain_wait_s));
}

void add_access_options(Command& command, ServeFlags& flags) {
  Option* key =
      command
          .add_option(
              "--api-key", flags.api_key,
              "API key that clients must send as 'Authorization: Bearer KEY' (default: OUTRIDER_API_KEY, or none)")
          ->check(check_api_key);
  command
      .add_option("--api-keys", flags.api_keys,
                  "File of API keys, one line per client: NAME sha256:HEX [max_requests=N] [tokens_per_minute=N]; "
                  "reread when it changes (docs/http.md)")
      ->excludes(key);
  Option* certificate =
      command.add_option("--tls-cert", flags.tls_certificate,
                         "PEM file with a certificate and its chain, for HTTPS; reread when it changes");
  Option* tls_key =
      command.add_option("--tls-key", flags.tls_key, "PEM file with the certificate's private key")->needs(certificate);
  certificate->needs(tls_key);
  command
      .add_option("--allowed-host", flags.http.allowed_hosts,
                  "Allowed Host header, besides localhost, this machine's name and numeric addresses; *: any (default "
                  "with a key: any)")
      ->delimiter(',')
      ->check(wrong_host);
  command
      .add_option("--allowed-origin", flags.http.allowed_origins,
                  "Allowed Origin (CORS) of pages from other servers, such as https://chat.example; *: any")
      ->delimiter(',')
      ->check(wrong_origin);
}

void add_trace_options(Command& command, TraceOptions& traces) {
  command.add_option("--trace", traces.file, "Append each request's spans to this file, as OTLP JSON (docs/traces.md)");
  command.add_option("--perfetto", traces.perfetto,
                     "Write the spans to this file as Chrome trace events, for ui.perfetto.dev; overwritten at start");
  command.add_option("--otlp", traces.otlp, "Send the spans to this OpenTelemetry collector, http://HOST:4318");
  add_number(command, "--trace-share", traces.share, 0.0, 1.0,
             "Share of requests that are traced, besides those that failed, moved, were slow, or have a sampled "
             "traceparent");
}

}  // namespace

void add_serve_command(Command& app) {
  Command* command = app.add_subcommand("serve", "Serve OpenAI's API over HTTP (docs/http.md)");
  auto flags = std::make_shared<ServeFlags>();
  flags->model.add_to(*command);
  command->add_option("--host", flags->http.host, "Address to listen on; 0.0.0.0: all interfaces")
      ->capture_default_str();
  add_number(*command, "--port", flags->http.port, 0, 65535, "Port; 0: any free port, which is printed");
  command
      ->add_option("--root-path", flags->http.root_path,
                   "Prefix that request paths may have, such as /llm, behind a proxy that does not remove it")
      ->check(check_root_path);
  add_access_options(*command, *flags);
  add_trace_options(*command, flags->traces);
  command->add_option("--served-model-name", flags->name, "Name of the model for clients (default: its directory)");
  command
      ->add_option("--metrics-prefix", flags->metrics_prefix,
                   "Prefix of the metrics' names; vllm: vLLM's names, for its dashboards and tools")
      ->check(check_metrics_prefix)
      ->capture_default_str();
  add_number(*command, "--max-request-bytes", flags->http.request_bytes_max, 1, 1 << 30,
             "Maximum size of a request in bytes, without files in it");
  add_number(*command, "--drain-wait", flags->drain_wait_s, 0, 86'400,
             "Seconds that open requests may continue after SIGTERM");
  auto* data_dir = command->add_option("--data-dir", flags->data_dir,
                                       "Folder for files and batches; enables /v1/files and /v1/batches");
  add_number(*command, "--data-mib", flags->data_mib_max, 1, 1 << 30, "Maximum size of the files in --data-dir, MiB")
      ->needs(data_dir);
  command->add_flag("--share-prefixes", flags->share_prefixes,
                    "Share cached prefixes among the clients of --api-keys too, who can then find out the prompts of "
                    "others by probing");
  command->add_flag("--strict-fields", flags->strict_fields,
                    "Refuse requests with unknown fields, instead of warning in the reply");
  command
      ->add_option(
          "--allowed-media-domains", flags->media_domains,
          "Fetch pictures, videos and sounds by http(s) URLs from these hosts: HOST[:PORT], *.DOMAIN[:PORT], *: any; "
          "only from public addresses, except numeric ones in this list (default: fetch nothing; docs/http.md)")
      ->delimiter(',');
  flags->draft_length.add_to(*command);
  Option* drafts_for = command->add_option(
      "--drafts-for", flags->drafts_for,
      "While this server is idle, draft with this model for the coordinator at tcp://HOST:PORT, whose model has "
      "the same tokens (docs/drafters.md)");
  flags->cluster.add_to(*command);
  CoordinatorOptions& coordinator = flags->cluster.cluster.coordinator;
  coordinator.requests_max = 64;
  add_node_options(*command, coordinator, named({"--max-requests"}));
  Option* insecure = command->get_option("--insecure");  // for --host too
  insecure->remove_needs(command->get_option("--connect"));
  insecure->description(
      "Allow other machines without keys: anybody on the network can read, and anybody can use the server");
  Option* connect = command->get_option("--connect");
  command->get_option("--max-requests")->excludes(connect);  // which has its own
  drafts_for->excludes(connect)->excludes(command->get_option("--processes"));
  for (const char* option : {"--key", "--coordinator-key"}) command->get_option(option)->remove_needs(connect);
  command->callback([flags] { serve(*flags); });
}

}  // namespace outrider
