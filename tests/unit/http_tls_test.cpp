// TLS of engine/net, against OpenSSL's client.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>

#include "engine/net/http_server.h"
#include "tests/catch.h"
#include "tests/unit/http_client.h"

using namespace qeng;

namespace {
// A certificate that signs itself, and its key, in files.
void write_certificate(const std::string& certificate, const std::string& key) {
  EVP_PKEY* pair = EVP_EC_gen("P-256");
  X509* x509 = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509), 0);
  X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
  X509_set_pubkey(x509, pair);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  X509_sign(x509, pair, EVP_sha256());
  FILE* file = std::fopen(certificate.c_str(), "w");
  PEM_write_X509(file, x509);
  std::fclose(file);
  file = std::fopen(key.c_str(), "w");
  PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(x509);
  EVP_PKEY_free(pair);
}
}  // namespace

TEST_CASE("TLS 1.2 and 1.3 carry the same, older ones and plain HTTP are refused") {
  const std::string folder = std::filesystem::temp_directory_path() / ("qeng_tls_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  HttpOptions options;
  options.port = 0;
  options.cert = folder + "/cert.pem";
  options.key = folder + "/key.pem";
  options.head_seconds = 1;
  write_certificate(options.cert, options.key);
  HttpServer server(options);
  const std::string large(300000, 'x');
  for (const int version : {TLS1_3_VERSION, TLS1_2_VERSION, TLS1_1_VERSION}) {
    HttpClient client(server.port());
    SSL_CTX* context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(context, 0);
    SSL_CTX_set_min_proto_version(context, version);
    SSL_CTX_set_max_proto_version(context, version);
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, client.fd());
    CHECK((SSL_connect(ssl) == 1) == (version >= TLS1_2_VERSION));
    if (version >= TLS1_2_VERSION) {
      const std::string request = "GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://a\r\nConnection: close\r\n\r\n";
      CHECK(SSL_write(ssl, request.data(), static_cast<int>(request.size())) > 0);
      const auto event = server.wait(10);
      REQUIRE(event);
      server.begin(event->id, 200, {});
      server.write(event->id, large);
      server.finish(event->id);
      std::string answer;
      char buffer[16384];
      int size = 0;
      while ((size = SSL_read(ssl, buffer, sizeof buffer)) > 0) answer.append(buffer, static_cast<size_t>(size));
      CHECK(SSL_get_error(ssl, size) == SSL_ERROR_ZERO_RETURN);  // it was told of the end
      CHECK(answer.find("\r\n493e0\r\n" + large + "\r\n0\r\n\r\n") != std::string::npos);
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
  }
  HttpClient plain(server.port());
  plain.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(plain.rest().find("200") == std::string::npos);
  HttpClient silent(server.port());
  CHECK(silent.rest() == "");
  std::filesystem::remove_all(folder);
}
