// Times encoding on one thread:  qeng_bench_tokenizers TOKENIZER DOCUMENTS [GRAMMAR [nfc|raw [--ids]]]
// DOCUMENTS: documents end to end, each with its length in front (u32, little-endian). GRAMMAR, and whether to
// normalise: for a .tiktoken file. Prints one JSON object: processor seconds of the first pass (caches cold) and of
// five more, how many ids, and their FNV-1a. With --ids it prints the ids instead, as i32, each document's count in
// front: for tests/golden/tokenizer_campaign.py. bench/tokenizers_vs_peers.py runs it beside its peers.
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "engine/formats/mapped_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/error.h"

namespace {

constexpr int kPasses = 6;

// Of this thread: what other programs take of the machine does not count.
double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::vector<std::string_view> read_documents(std::string_view rest) {
  std::vector<std::string_view> documents;
  while (!rest.empty()) {
    uint32_t bytes = 0;
    if (rest.size() >= sizeof bytes) std::memcpy(&bytes, rest.data(), sizeof bytes);
    if (rest.size() < sizeof bytes || rest.size() - sizeof bytes < bytes)
      qeng::fail("format", "the last document is cut short");
    documents.push_back(rest.substr(sizeof bytes, bytes));
    rest.remove_prefix(sizeof bytes + bytes);
  }
  return documents;
}

void print_ids(const qeng::Tokenizer& tokenizer, const std::vector<std::string_view>& documents) {
  for (std::string_view document : documents) {
    std::vector<int32_t> ids = tokenizer.encode(document, false);
    ids.insert(ids.begin(), static_cast<int32_t>(ids.size()));
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
  }
}

void measure(const qeng::Tokenizer& tokenizer, const std::vector<std::string_view>& documents) {
  std::printf("{\"seconds\": [");
  size_t count = 0;
  uint64_t hash = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::vector<int32_t>> results(documents.size());
    double start = processor_seconds();
    for (size_t i = 0; i < documents.size(); ++i) results[i] = tokenizer.encode(documents[i], false);
    std::printf("%s%.6f", pass ? ", " : "", processor_seconds() - start);
    count = 0;
    hash = 0xCBF29CE484222325u;
    for (const std::vector<int32_t>& ids : results) {
      count += ids.size();
      for (int32_t id : ids) hash = (hash ^ static_cast<uint64_t>(id)) * 0x100000001B3u;
    }
  }
  std::printf("], \"ids\": %zu, \"fnv\": \"%016llx\"}\n", count, static_cast<unsigned long long>(hash));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 6) {
    std::fprintf(stderr, "usage: qeng_bench_tokenizers TOKENIZER DOCUMENTS [GRAMMAR [nfc|raw [--ids]]]\n");
    return 2;
  }
  try {
    std::string path = argv[1];
    qeng::TiktokenOptions options;
    if (argc > 3) options.grammar = argv[3];
    if (argc > 4) options.nfc = argv[4] == std::string("nfc");
    auto tokenizer = path.ends_with(".tiktoken") ? qeng::load_tiktoken(path, options) : qeng::load_tokenizer(path);
    auto file = qeng::MappedFile::open(argv[2]);
    const std::vector<std::string_view> documents = read_documents(file->text());
    argc > 5 ? print_ids(*tokenizer, documents) : measure(*tokenizer, documents);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "qeng_bench_tokenizers: %s\n", error.what());
    return 1;
  }
}
