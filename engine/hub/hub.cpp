#include "engine/hub/hub.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/hub/connection.h"
#include "engine/hub/digest.h"
#include "engine/hub/download.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxListing = size_t{64} << 20;  // bytes of JSON; the hub's largest repositories need a few MB
constexpr uint64_t kMaxFile = uint64_t{1} << 50;

HubFile file_of(const json& entry) {
  const auto text = [](const json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  HubFile file{text(entry, "rfilename"), std::nullopt, ""};
  check_file_path(file.path);
  const auto lfs = entry.find("lfs");
  const bool large = lfs != entry.end() && lfs->is_object();
  file.hash = large ? text(*lfs, "sha256") : text(entry, "blobId");
  if (!is_hex(file.hash, large ? 64 : 40)) file.hash.clear();
  const json& sized = large ? *lfs : entry;
  if (const auto size = sized.find("size"); size != sized.end() && size->is_number()) {
    if (!size->is_number_unsigned() || size->get<uint64_t>() > kMaxFile)
      fail("format", "the hub says that ", file.path, " has ", size->dump(), " bytes: refused");
    file.size = size->get<uint64_t>();
  }
  return file;
}

}  // namespace

Hub::Hub(HubSettings settings) : settings_(std::move(settings)) {
  check_transport(parse_url(settings_.endpoint), nullptr);
}
Hub::~Hub() = default;

HubConnection& Hub::connection() {
  if (settings_.offline) fail("network", "HF_HUB_OFFLINE is set: nothing is downloaded");
  if (!connection_) connection_ = std::make_unique<HubConnection>(settings_);
  return *connection_;
}

HubListing Hub::list(RepoKind kind, const std::string& repo, const std::string& revision, const HubWatch& watch) {
  check_repo(repo);
  check_revision(revision);
  const std::string path = std::string("/api/") + (kind == RepoKind::model ? "models/" : "datasets/") +
                           escape_path(repo) + "/revision/" + escape_segment(revision) + "?blobs=true";
  const auto tick = [&](const std::string& note) {
    if (watch) watch({0, std::nullopt, note});
  };
  std::string body;
  const auto collect = [&](const HttpResponse&, std::string_view bytes) {
    if (body.size() + bytes.size() > kMaxListing) fail("format", "the hub's list of ", repo, " is over 64 MB: refused");
    body += bytes;
  };
  connection().insist(
      [&](bool&) {
        body.clear();
        return connection().once(path, repo + " at " + revision, false, 0, false, collect, tick).status == 200;
      },
      tick);
  const json answer = json::parse(body, nullptr, false);
  if (!answer.is_object() || !answer.contains("sha") || !answer["sha"].is_string() || !answer.contains("siblings") ||
      !answer["siblings"].is_array())
    fail("format", "the hub ", settings_.endpoint, " does not answer as a Hugging Face hub does: its list of ", repo,
         " has no 'sha' or no 'siblings'");
  HubListing listing{answer["sha"].get<std::string>(), "", {}};
  check_commit(listing.commit);
  listing.folder = HubCache(settings_.cache, kind, repo).snapshot(listing.commit);
  std::set<std::string> names;
  for (const json& entry : answer["siblings"]) {
    if (!entry.is_object()) fail("format", "the hub's list of ", repo, " holds what is no file");
    listing.files.push_back(file_of(entry));
    if (!names.insert(listing.files.back().path).second)
      fail("format", "the hub's list of ", repo, " names ", listing.files.back().path, " twice");
  }
  std::sort(listing.files.begin(), listing.files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return listing;
}

std::optional<HubListing> Hub::cached(RepoKind kind, const std::string& repo, const std::string& revision) const {
  check_revision(revision);
  const HubCache cache(settings_.cache, kind, repo);
  HubListing listing{cache.commit_of(revision), "", {}};
  if (listing.commit.empty()) return std::nullopt;
  listing.folder = cache.snapshot(listing.commit);
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(listing.folder, error)) {
    if (!entry.is_regular_file(error)) continue;  // a link whose blob is gone is none
    listing.files.push_back(
        {fs::path(entry.path()).lexically_relative(listing.folder).string(), entry.file_size(error), ""});
  }
  if (error) fail("io", listing.folder, ": ", error.message());
  std::sort(listing.files.begin(), listing.files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return listing;
}

std::string Hub::fetch(RepoKind kind, const std::string& repo, const std::string& commit, const HubFile& file,
                       const HubWatch& watch, bool* unverified) {
  check_commit(commit);
  check_file_path(file.path);
  const HubCache cache(settings_.cache, kind, repo);
  const std::string pointer = cache.snapshot(commit) + "/" + file.path;
  if (unverified) *unverified = false;
  std::error_code error;
  if (fs::is_regular_file(pointer, error) && (!file.size || fs::file_size(pointer, error) == *file.size))
    return pointer;
  const bool checked = download_file(connection(), cache, kind, repo, commit, file, watch);
  if (unverified) *unverified = !checked;
  return pointer;
}

void Hub::pin(RepoKind kind, const std::string& repo, const std::string& revision, const std::string& commit) const {
  check_revision(revision);
  check_commit(commit);
  HubCache(settings_.cache, kind, repo).set_commit(revision, commit);
}

}  // namespace qeng
