// Folders of keys, and what else reads them.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/unit/peers_fixture.h"

namespace qeng {
using namespace peers_test;

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

mode_t mode_of(const std::string& path) {
  struct stat about {};
  REQUIRE(::stat(path.c_str(), &about) == 0);
  return about.st_mode & 0777;
}

}  // namespace

TEST_CASE("a folder of keys has one pair, made once, that nobody else may read") {
  const Scratch scratch;
  const std::string folder = scratch / "new/keys";
  const PeerKeys keys(folder, "anna");
  CHECK(keys.own().name == "anna");
  CHECK(keys.own().public_key.size() == 40);
  CHECK(mode_of(folder + "/own") == 0600);
  CHECK(mode_of(folder) == 0700);
  CHECK(read(folder + "/own").find("public-key = \"" + keys.own().public_key + "\"") != std::string::npos);
  const PeerKeys again(folder);
  CHECK(again.own().public_key == keys.own().public_key);
  CHECK(again.own().secret_key == keys.own().secret_key);
  CHECK(again.known().empty());
  CHECK_THROWS_WITH(PeerKeys(folder, "ben"), containing("is the pair of anna, not of ben"));
  CHECK(PeerKeys(scratch / "unnamed").own().name != "");
}

TEST_CASE("processes that come first together make one pair") {
  const Scratch scratch;
  const std::string folder = scratch / "keys";
  constexpr int kProcesses = 8;
  for (int i = 0; i < kProcesses; ++i) {
    if (::fork() != 0) continue;
    int status = 1;
    try {
      const PeerKeys keys(folder);
      std::ofstream(scratch / std::to_string(i)) << keys.own().public_key;
      status = 0;
    } catch (const std::exception&) {
    }
    ::_exit(status);
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = 1;
    ::wait(&status);
    CHECK(status == 0);
  }
  for (int i = 0; i < kProcesses; ++i) CHECK(read(scratch / std::to_string(i)) == PeerKeys(folder).own().public_key);
}

TEST_CASE("a secret key that others may read is refused") {
  const Scratch scratch;
  const std::string folder = scratch / "keys", own = folder + "/own";
  { const PeerKeys keys(folder); }
  for (mode_t mode : {0640, 0604, 0620}) {
    ::chmod(own.c_str(), mode);
    CHECK_THROWS_WITH(PeerKeys(folder), containing("chmod 600"));
  }
  ::chmod(own.c_str(), 0400);
  CHECK_NOTHROW(PeerKeys(folder));
}

TEST_CASE("keys of peers are known by name and forgotten, and what is none is refused") {
  const Scratch scratch;
  PeerKeys anna(scratch / "anna", "anna");
  const PeerKeys ben(scratch / "ben", "ben"), carl(scratch / "carl", "carl");
  const std::string key = ben.own().public_key, other = carl.own().public_key;
  CHECK(anna.name_of(key).empty());
  CHECK_THROWS_WITH(anna.key_of("ben"), containing("neither the name nor the key of a known peer"));
  anna.know("ben", key);
  anna.know("ben", key);  // again is the same
  CHECK(anna.known() == std::map<std::string, std::string>{{"ben", key}});
  CHECK(anna.name_of(key) == "ben");
  CHECK(anna.key_of("ben") == key);
  CHECK(anna.key_of(key) == key);
  CHECK(anna.name_of(anna.own().public_key) == "anna");
  CHECK(read(scratch / "anna/known/ben").find("secret") == std::string::npos);

  CHECK_THROWS_WITH(anna.know("ben", other), containing("forget it first"));
  CHECK_THROWS_WITH(anna.know("benjamin", key), containing("is known as that of ben"));
  CHECK_THROWS_WITH(anna.know("me", anna.own().public_key), containing("this machine's own"));
  for (const char* name : {"", ".", "..", ".x", "-x", "a/b", "a b", "\xc3\xa4", "a\nb"})
    CHECK_THROWS_WITH(anna.know(name, other), containing("is no name of a peer"));
  CHECK_THROWS_AS(anna.know(std::string(65, 'a'), other), Error);
  anna.know(std::string(64, 'a'), other);
  anna.forget(std::string(64, 'a'));
  for (const std::string& bad : {std::string(), key.substr(1), key + "0", std::string(40, '#'), std::string(40, '"'),
                                 std::string(39, '0') + "\n"})
    CHECK_THROWS_AS(anna.know("carl", bad), Error);
  CHECK(anna.known().size() == 1);

  // Another process has changed the folder.
  PeerKeys(scratch / "anna").know("carl", other);
  CHECK(anna.name_of(other) == "carl");
  PeerKeys(scratch / "anna").forget("ben");
  CHECK(anna.name_of(key).empty());
  CHECK_THROWS_WITH(anna.forget("ben"), containing("no key of ben is known"));
}

TEST_CASE("files that are no certificates let nobody in, and are named") {
  const Scratch scratch;
  PeerKeys anna(scratch / "anna", "anna");
  const PeerKeys ben(scratch / "ben", "ben");
  anna.know("ben", ben.own().public_key);
  std::ofstream(scratch / "anna/known/junk") << "curve\n    public-key = \"short\"\n";
  CHECK_THROWS_WITH(anna.known(), containing("known/junk"));
  CHECK(anna.name_of(ben.own().public_key) == "ben");
  std::ofstream(scratch / "anna/known/junk") << std::string(1 << 20, 'x');
  CHECK_THROWS_WITH(anna.known(), containing("known/junk"));
  fs::remove(scratch / "anna/known/junk");

  const std::string own = read(scratch / "anna/own");
  const auto spoil = [&](const std::string& text) {
    std::ofstream(scratch / "anna/own") << text;
    return PeerKeys(scratch / "anna");
  };
  CHECK_THROWS_WITH(spoil(""), containing("anna/own"));
  CHECK_THROWS_WITH(spoil(own.substr(0, own.find("    secret-key"))), containing("has no secret-key"));
  std::string mixed = own;
  mixed.replace(mixed.find(anna.own().public_key), 40, ben.own().public_key);
  CHECK_THROWS_WITH(spoil(mixed), containing("is not that of its public-key"));
  CHECK(spoil(own).own().secret_key == anna.own().secret_key);
}

// CZMQ's own functions, which are no part of what is tested.
struct Zcert {
  void* library = dlopen("libczmq.so.4", RTLD_NOW);
  template <class F>
  F get(const char* name) const {
    return reinterpret_cast<F>(dlsym(library, name));
  }
};

TEST_CASE("CZMQ reads the certificates that are written here, and they are read where CZMQ wrote them") {
  const Zcert zcert;
  if (!zcert.library) {
    WARN("SKIPPED: no libczmq.so.4 here");
    return;
  }
  const auto load = zcert.get<void* (*)(const char*)>("zcert_load");
  const auto public_text = zcert.get<const char* (*)(void*)>("zcert_public_txt");
  const auto secret_text = zcert.get<const char* (*)(void*)>("zcert_secret_txt");
  const auto meta = zcert.get<const char* (*)(void*, const char*)>("zcert_meta");
  const auto set_meta = zcert.get<void (*)(void*, const char*, const char*, ...)>("zcert_set_meta");
  const auto save = zcert.get<int (*)(void*, const char*)>("zcert_save_secret");
  const auto save_public = zcert.get<int (*)(void*, const char*)>("zcert_save_public");
  const auto destroy = zcert.get<void (*)(void**)>("zcert_destroy");
  const auto make = zcert.get<void* (*)()>("zcert_new");

  const Scratch scratch;
  PeerKeys anna(scratch / "anna", "anna");
  void* read = load((scratch / "anna/own").c_str());
  REQUIRE(read);
  CHECK(public_text(read) == anna.own().public_key);
  CHECK(secret_text(read) == anna.own().secret_key);
  CHECK(meta(read, "name") == std::string("anna"));
  destroy(&read);

  void* made = make();
  set_meta(made, "name", "%s", "ben");
  fs::create_directories(scratch / "ben/known");
  REQUIRE(save(made, (scratch / "ben/own").c_str()) == 0);
  REQUIRE(save_public(made, (scratch / "anna/known/ben").c_str()) == 0);
  const PeerKeys ben(scratch / "ben");
  CHECK(ben.own().name == "ben");
  CHECK(ben.own().public_key == public_text(made));
  CHECK(ben.own().secret_key == secret_text(made));
  CHECK(anna.known().at("ben") == ben.own().public_key);
  destroy(&made);
}

TEST_CASE("a key is 40 characters of Z85 that are 32 bytes") {
  CHECK(is_peer_key("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"));  // of zmq_curve(7)
  CHECK(is_peer_key(std::string(40, '0')));
  CHECK_FALSE(is_peer_key(std::string(40, '#')));      // each word over 32 bits
  CHECK(is_peer_key("%nSc0" + std::string(35, '0')));  // 0xffffffff
  CHECK_FALSE(is_peer_key("%nSc1" + std::string(35, '0')));
  CHECK_FALSE(is_peer_key("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf"));
  CHECK_FALSE(is_peer_key("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf\""));
}

}  // namespace qeng
