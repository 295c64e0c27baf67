// Names, addresses and hashes of engine/hub; what it does with a server is in tests/transcripts/hub_test.sh.
#include "engine/hub/cache.h"
#include "engine/hub/digest.h"
#include "engine/hub/url.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;

TEST_CASE("only https is used, and http on loopback") {
  CHECK_NOTHROW(check_transport(parse_url("https://huggingface.co/a"), nullptr));
  for (const char* url : {"http://127.0.0.1:8/x", "http://localhost/x", "http://[::1]:80/", "http://127.9.9.9/"})
    CHECK_NOTHROW(check_transport(parse_url(url), nullptr));
  for (const char* url : {"http://huggingface.co/", "http://127.0.0.1.example.com/", "http://localhost.example.com/",
                          "http://[::2]/", "http://128.0.0.1/"})
    CHECK_THROWS_AS(check_transport(parse_url(url), nullptr), Error);
  const Url hub = parse_url("https://huggingface.co/a/b");
  CHECK_THROWS_AS(check_transport(resolve_url(hub, "http://127.0.0.1/x"), &hub),
                  Error);  // a server points us at ourselves
  for (const char* text :
       {"", "nothing", "ftp://a/b", "file:///etc/passwd", "https://me:secret@huggingface.co/", "https://me@x/"})
    CHECK_THROWS_AS(parse_url(text), Error);
}

TEST_CASE("a redirect is relative or absolute, and an origin is scheme, host and port") {
  const Url hub = parse_url("https://hub.example/a/b");
  CHECK(resolve_url(hub, "/c?d=%20").text == "https://hub.example/c?d=%20");
  CHECK(same_origin(hub, resolve_url(hub, "/c")));
  CHECK(same_origin(hub, parse_url("https://hub.example:443/")));
  for (const char* other :
       {"//cdn.example/c", "https://hub.example:8443/", "http://hub.example/", "https://hub.example.org/"})
    CHECK_FALSE(same_origin(hub, resolve_url(hub, other)));
  CHECK(escape_path("a b/\xc3\xa4#?%.txt") == "a%20b/%C3%A4%23%3F%25.txt");
  CHECK(escape_segment("refs/pr/1") == "refs%2Fpr%2F1");
}

TEST_CASE("names from a server that would lead out of their folder are refused") {
  for (const char* good :
       {"config.json", "data/train-00000-of-00002.jsonl", ".gitattributes", "a b", "x/.y/z", "\xc3\xa4"})
    CHECK_NOTHROW(check_file_path(good));
  for (const std::string& bad :
       {std::string(""), std::string("/etc/passwd"), std::string("../x"), std::string("a/../../x"), std::string("a//b"),
        std::string("./a"), std::string("a/"), std::string("a\nb"), std::string("a\0b", 3), std::string("a\\..\\b"),
        std::string("a/."), std::string(300, 'x'), std::string("\x1b[31m")})
    CHECK_THROWS_AS(check_file_path(bad), Error);
  try {
    check_file_path("\x1b[31m");
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find('\x1b') == std::string::npos);  // no terminal is steered by a server
  }
  for (const char* bad : {"", "..", ".x", "a/b", "a\nb"}) CHECK_THROWS_AS(check_etag(bad), Error);
  for (const char* bad : {"", "main", "../../x", "C0FFEE0000000000000000000000000000000000"})
    CHECK_THROWS_AS(check_commit(bad), Error);
  for (const char* bad : {"", "../x", "/main", "a/../b", "a//b", "main/", "a b", "a/.b", ".a"})
    CHECK_THROWS_AS(check_revision(bad), Error);
  for (const char* good : {"main", "v1.0", "refs/pr/1"}) CHECK_NOTHROW(check_revision(good));
  for (const char* bad : {"", "/", "a/", "/b", "a/b/c", "..", "a/..", "a--b/c", "a/-b", "a/b."})
    CHECK_THROWS_AS(check_repo(bad), Error);
  for (const char* good : {"gpt2", "Qwen/Qwen2.5-0.5B-Instruct", "a_b/c.d"}) CHECK_NOTHROW(check_repo(good));
}

TEST_CASE("hashes are those of sha256sum and of git hash-object") {
  const auto sum = [](const std::string& kind, std::string_view text) {
    Digest digest(kind, text.size());
    digest.add(text.substr(0, 2));
    digest.add(text.substr(2));
    return digest.finish();
  };
  CHECK(sum(std::string(64, '0'), "hello\n") == "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
  CHECK(sum(std::string(40, '0'), "hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a");
  CHECK(sum("v1-33", "hello\n").empty());
}
