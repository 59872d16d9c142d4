#include "common/http/tls.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>

#include <algorithm>
#include <climits>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/http/keyed_tls.h"
#include "common/os/file_watch.h"
#include "common/os/files.h"
#include "common/os/logging.h"

namespace outrider {
namespace {

template <auto release>
struct Release {
  void operator()(auto* object) const { release(object); }
};
using Context = std::unique_ptr<SSL_CTX, Release<SSL_CTX_free>>;
using Ssl = std::unique_ptr<SSL, Release<SSL_free>>;

/// Returns OpenSSL's error message.
std::string reason() {
  const char* const text = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return text == nullptr ? "no reason given" : text;
}

/// Allows TLS 1.3, and 1.2 with ephemeral keys and authenticated encryption.
bool bound_versions(SSL_CTX* context) {
  return SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1 &&
         SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") == 1;
}

class Session : public TlsSession {
 public:
  explicit Session(Ssl ssl) : ssl_(std::move(ssl)) {}

  Attempt handshake() override { return attempt(SSL_do_handshake(ssl_.get())); }
  Attempt read(std::span<char> bytes) override {
    return attempt(SSL_read(ssl_.get(), bytes.data(), static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX))));
  }
  Attempt write(std::span<const char> bytes) override {
    // Nothing is read until a KeyUpdate is sent: two ends with full sockets would wait for each other. TLS 1.2 has no
    // KeyUpdate, and SSL_key_update() fails while a record is half sent.
    if (records_ >= kRecordsPerKey && has_room() &&
        SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1)
      records_ = 0;
    ERR_clear_error();
    const Attempt done =
        attempt(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(std::min<std::size_t>(bytes.size(), INT_MAX))));
    if (done.bytes > 0) records_ += 1 + static_cast<std::int64_t>(done.bytes) / SSL3_RT_MAX_PLAIN_LENGTH;
    return done;
  }
  bool has_unread() const override { return SSL_pending(ssl_.get()) > 0; }
  void end() override {
    if (SSL_is_init_finished(ssl_.get())) SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  std::string problem() const override { return problem_; }

 protected:
  SSL* ssl() const { return ssl_.get(); }

 private:
  /// Far below AES-GCM's 2^24.5 (RFC 8446, 5.5).
  static constexpr std::int64_t kRecordsPerKey = 1 << 17;

  /// Returns true if the socket takes some bytes at once.
  bool has_room() const {
    pollfd socket{.fd = SSL_get_wfd(ssl_.get()), .events = POLLOUT, .revents = 0};
    return poll(&socket, 1, 0) == 1 && (socket.revents & POLLOUT) != 0;
  }

  Attempt attempt(int result) {
    if (result > 0) return {.bytes = static_cast<std::size_t>(result)};
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_SSL) problem_ = reason();
    if (error == SSL_ERROR_SYSCALL) problem_ = "the connection was broken off";  // only close_notify is an end
    ERR_clear_error();
    return {.wait_for = static_cast<short>(error == SSL_ERROR_WANT_READ    ? POLLIN
                                           : error == SSL_ERROR_WANT_WRITE ? POLLOUT
                                                                           : 0)};
  }

  Ssl ssl_;
  std::int64_t records_ = 0;  ///< written with the present key, at most
  std::string problem_;
};

using PKey = std::unique_ptr<EVP_PKEY, Release<EVP_PKEY_free>>;
using Agreement = std::unique_ptr<EVP_PKEY_CTX, Release<EVP_PKEY_CTX_free>>;

/// Returns the secret of a client and a server: SHA-256 over the Diffie-Hellman result of their keys, and over both
/// public keys. None for an invalid key.
std::optional<CurveKey> shared_key(const CurveKey& own_secret, const CurveKey& other, const CurveKey& client,
                                   const CurveKey& server) {
  constexpr std::string_view kUse = "outrider shard 1";
  const PKey own(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, own_secret.data(), own_secret.size())),
      peer(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, other.data(), other.size()));
  const Agreement agreement(own == nullptr ? nullptr : EVP_PKEY_CTX_new(own.get(), nullptr));
  CurveKey agreed, key;
  std::size_t size = agreed.size();
  if (agreement == nullptr || peer == nullptr || EVP_PKEY_derive_init(agreement.get()) != 1 ||
      EVP_PKEY_derive_set_peer(agreement.get(), peer.get()) != 1 ||
      EVP_PKEY_derive(agreement.get(), agreed.data(), &size) != 1)
    return std::nullopt;
  std::vector<std::uint8_t> text(kUse.begin(), kUse.end());
  for (const CurveKey& part : {agreed, client, server}) text.insert(text.end(), part.begin(), part.end());
  if (EVP_Digest(text.data(), text.size(), key.data(), nullptr, EVP_sha256(), nullptr) != 1) return std::nullopt;
  return key;
}

/// TLS with such a key. The identity is its public key.
class KeyedSession final : public Session {
 public:
  using Admits = std::function<bool(const CurveKey&)>;
  KeyedSession(Ssl ssl, const CurveKeyPair& own, const CurveKey& server, Admits admits)
      : Session(std::move(ssl)), own_(own), server_(server), admits_(std::move(admits)) {
    SSL_set_app_data(this->ssl(), this);
  }

  /// @param admits  on a server
  static std::unique_ptr<TlsSession> make(const CurveKeyPair& own, const CurveKey& server, Admits admits, int socket) {
    const Context context(SSL_CTX_new(TLS_method()));
    if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context.get(), "TLS_AES_128_GCM_SHA256") != 1)
      return nullptr;
    // A client accepts no certificate, as it trusts none: only the shared key proves the server.
    if (admits == nullptr) SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_num_tickets(context.get(), 0);
    SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    // Reads several records with one system call.
    SSL_CTX_set_read_ahead(context.get(), 1);
    SSL_CTX_set_default_read_buffer_len(context.get(), 64 << 10);
    Ssl ssl(SSL_new(context.get()));
    if (ssl == nullptr || SSL_set_fd(ssl.get(), socket) != 1) return nullptr;
    if (admits != nullptr) {
      SSL_set_accept_state(ssl.get());
      SSL_set_psk_find_session_callback(ssl.get(), find);
    } else {
      SSL_set_connect_state(ssl.get());
      SSL_set_psk_use_session_callback(ssl.get(), use);
    }
    return std::make_unique<KeyedSession>(std::move(ssl), own, server, std::move(admits));
  }

 private:
  static int find(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** found) {
    const auto& self = *static_cast<KeyedSession*>(SSL_get_app_data(ssl));
    CurveKey client;
    *found = nullptr;  // not an error: without a certificate there is nothing else to negotiate
    if (size != client.size()) return 1;
    std::copy_n(identity, size, client.begin());
    if (self.admits_(client)) *found = self.session(client, client, self.own_.open);
    return 1;
  }
  static int use(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* size,
                 SSL_SESSION** found) {
    const auto& self = *static_cast<KeyedSession*>(SSL_get_app_data(ssl));
    *found = digest == nullptr || EVP_MD_is_a(digest, "SHA256") == 1
                 ? self.session(self.server_, self.own_.open, self.server_)
                 : nullptr;
    *identity = self.own_.open.data();
    *size = self.own_.open.size();
    return *found != nullptr;
  }
  /// Wraps a key in TLS's own form, which OpenSSL owns from here on. Null on failure.
  SSL_SESSION* session(const CurveKey& other, const CurveKey& client, const CurveKey& server) const {
    constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
    const std::optional<CurveKey> key = shared_key(own_.secret, other, client, server);
    std::unique_ptr<SSL_SESSION, Release<SSL_SESSION_free>> session(key ? SSL_SESSION_new() : nullptr);
    const bool made = session != nullptr && SSL_SESSION_set1_master_key(session.get(), key->data(), key->size()) == 1 &&
                      SSL_SESSION_set_cipher(session.get(), SSL_CIPHER_find(ssl(), kCipher)) == 1 &&
                      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
    return made ? session.release() : nullptr;
  }

  const CurveKeyPair own_;
  const CurveKey server_;
  const Admits admits_;
};

/// Chooses HTTP/1.1 if the client offers a choice; otherwise the client decides.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, size, kOurs, sizeof kOurs - 1, offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

Result<Context> read_context(const std::filesystem::path& certificate, const std::filesystem::path& key) {
  for (const auto& file : {certificate, key}) RETURN_IF_ERROR(MappedFile::open(file));
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr || !bound_versions(context.get())) return Error{Errc::kIo, "TLS: " + reason()};
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  // Nobody can be asked for a password.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) != 1)
    return file_error(Errc::kMalformed, certificate, "{}, wanted a certificate in PEM", reason());
  if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return file_error(Errc::kMalformed, key, "{}, wanted the key of {} in PEM, without a password", reason(),
                      certificate.string());
  }
  return Result<Context>(std::move(context));
}

class Identity final : public TlsIdentity {
 public:
  Identity(FileWatch certificate, FileWatch key, Context context)
      : certificate_(std::move(certificate)), key_(std::move(key)), context_(std::move(context)) {}

  std::unique_ptr<TlsSession> session(int socket) override {
    const std::lock_guard lock(mutex_);
    refresh();
    Ssl ssl(SSL_new(context_.get()));  // keeps a reference to the context
    if (ssl == nullptr || SSL_set_fd(ssl.get(), socket) != 1) return nullptr;
    SSL_set_accept_state(ssl.get());
    return std::make_unique<Session>(std::move(ssl));
  }

 private:
  void refresh() {
    const bool certificate_changed = certificate_.changed(), key_changed = key_.changed();
    if (!certificate_changed && !key_changed) return;
    Result<Context> read = read_context(certificate_.path(), key_.path());
    if (read)
      context_ = std::move(*read);
    else
      log_error("event=tls_files_kept reason=\"{}\": those before hold on", read.error().message);
  }

  std::mutex mutex_;
  FileWatch certificate_, key_;
  Context context_;
};

}  // namespace

Result<std::unique_ptr<TlsSession>> TlsSession::to(const std::string& host, int socket) {
  const Context trust(SSL_CTX_new(TLS_client_method()));
  Ssl ssl(trust == nullptr || !bound_versions(trust.get()) ? nullptr : SSL_new(trust.get()));  // holds a reference
  if (ssl == nullptr || SSL_CTX_set_default_verify_paths(trust.get()) != 1 || SSL_set_fd(ssl.get(), socket) != 1)
    return Error{Errc::kIo, "TLS: " + reason()};
  SSL_set_verify(ssl.get(), SSL_VERIFY_PEER, nullptr);
  SSL_set_hostflags(ssl.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const bool in_numbers = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl.get()), host.c_str()) == 1;
  if (!in_numbers &&
      (SSL_set1_host(ssl.get(), host.c_str()) != 1 || SSL_set_tlsext_host_name(ssl.get(), host.c_str()) != 1))
    return Error{Errc::kIo, "TLS takes no such name"};
  ERR_clear_error();
  SSL_set_mode(ssl.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_set_connect_state(ssl.get());
  return std::unique_ptr<TlsSession>(std::make_unique<Session>(std::move(ssl)));
}

std::unique_ptr<TlsSession> tls_to_key(const CurveKeyPair& own, const CurveKey& server, int socket) {
  return KeyedSession::make(own, server, nullptr, socket);
}

std::unique_ptr<TlsSession> tls_from_keys(const CurveKeyPair& own, std::function<bool(const CurveKey&)> admits,
                                          int socket) {
  return KeyedSession::make(own, {}, std::move(admits), socket);
}

Result<std::shared_ptr<TlsIdentity>> TlsIdentity::load(const std::filesystem::path& certificate,
                                                       const std::filesystem::path& key) {
  FileWatch certificate_watch(certificate), key_watch(key);  // before the files are read: sees later changes
  ASSIGN_OR_RETURN(Context context, read_context(certificate, key));
  return std::shared_ptr<TlsIdentity>(
      std::make_shared<Identity>(std::move(certificate_watch), std::move(key_watch), std::move(context)));
}

}  // namespace outrider
