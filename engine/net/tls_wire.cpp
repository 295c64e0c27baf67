#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cstring>

#include "engine/net/wire.h"
#include "kernels/error.h"

namespace qeng {
namespace {
namespace asio = boost::asio;

class TlsWire final : public Wire {
 public:
  TlsWire(asio::ip::tcp::socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}

  void handshake(std::function<void(WireError)> then) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(then));
  }
  void read(std::function<void(WireError, std::string_view)> then) override {
    stream_.async_read_some(asio::buffer(buffer_), [this, then = std::move(then)](WireError error, size_t size) {
      then(error, {buffer_.data(), size});
    });
  }
  void write(std::string_view text, std::function<void(WireError, size_t)> then) override {
    stream_.async_write_some(asio::buffer(text.data(), text.size()), std::move(then));
  }
  void end(std::function<void()> then) override {
    stream_.async_shutdown([then = std::move(then)](WireError) { then(); });
  }
  void close() override {
    WireError ignored;
    stream_.lowest_layer().close(ignored);
  }

 private:
  asio::ssl::stream<asio::ip::tcp::socket> stream_;
  std::array<char, 4096> buffer_;
};

// HTTP/1.1 is what a client may choose by ALPN; one that offers only others goes on without.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned offered_size, void*) {
  for (unsigned at = 0; at < offered_size; at += 1u + offered[at]) {
    if (offered[at] != 8 || at + 9 > offered_size || std::memcmp(offered + at + 1, "http/1.1", 8) != 0) continue;
    *chosen = offered + at + 1;
    *size = 8;
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_NOACK;
}

int no_password(char*, int, int, void*) { return 0; }

[[noreturn]] void refuse(const std::string& path, const char* what) {
  char reason[256];
  ERR_error_string_n(ERR_get_error(), reason, sizeof reason);
  fail("io", path, ": ", what, " (OpenSSL: ", reason, ")");
}
}  // namespace

struct TlsContext::Context {
  asio::ssl::context ssl{asio::ssl::context::tls_server};
};

TlsContext::TlsContext(const std::string& certificate, const std::string& key) : context_(std::make_unique<Context>()) {
  SSL_CTX* const ssl = context_->ssl.native_handle();
  SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION);
  SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);  // a connection that waits keeps none of OpenSSL's
  SSL_CTX_set_default_passwd_cb(ssl, no_password);  // OpenSSL's own asks at the terminal
  SSL_CTX_set_alpn_select_cb(ssl, choose_protocol, nullptr);
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(ssl, certificate.c_str()) != 1)
    refuse(certificate, "no certificate in PEM can be read there");
  if (SSL_CTX_use_PrivateKey_file(ssl, key.c_str(), SSL_FILETYPE_PEM) != 1)
    refuse(key, "no private key in PEM, without a passphrase, of that certificate can be read there");
}
TlsContext::~TlsContext() = default;

std::unique_ptr<Wire> TlsContext::wire(asio::ip::tcp::socket socket) {
  return std::make_unique<TlsWire>(std::move(socket), context_->ssl);
}

}  // namespace qeng
