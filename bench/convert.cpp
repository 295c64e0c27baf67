// Where the time of a conversion goes:  qeng_bench_convert DATA.jsonl TOKENIZER [THREADS]
// Each stage alone on one thread (read and cut; and parse; and render, tokenize, frame), then the pipeline with a
// tokenizer that costs nothing (an id for each four bytes) and with the real one. MB/s of text, best of five.
#include "engine/convert/convert.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "engine/convert/input_reader.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"

using namespace qeng;

namespace {
class FreeTokenizer final : public Tokenizer {
 public:
  explicit FreeTokenizer(TokenBytes bytes)
      : Tokenizer({.name = "free", .added = {{"<|im_start|>", 1}, {"<|im_end|>", 2}, {"<|endoftext|>", 3}}},
                  std::move(bytes), 0) {}
  Vocabulary vocabulary() const override {
    fail("unsupported", name(), ": a tokenizer that costs nothing has no vocabulary");
  }

 protected:
  void encode_valid(std::string_view text, std::vector<int32_t>& ids, bool, bool) const override {
    const size_t before = ids.size();
    ids.resize(before + (text.size() + 3) / 4);
    for (size_t i = before; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i & 0xFFFF);
  }
};

std::shared_ptr<const Tokenizer> free_tokenizer() {
  TokenBytes bytes;
  for (int i = 0; i < 0x10000; ++i) bytes.append("abcd");
  return std::make_shared<FreeTokenizer>(std::move(bytes));
}

// A second of the wall's clock and one of the processors', of all threads: on a machine that others use, only the
// second tells what the code costs.
struct Rate {
  double wall = 0, processor = 0;
};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Rate best_rate(double megabytes, const std::function<void()>& body) {
  Rate best;
  for (int round = 0; round < 5; ++round) {
    const auto began = std::chrono::steady_clock::now();
    const double spent = processor_seconds();
    body();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    best.wall = std::max(best.wall, megabytes / seconds);
    best.processor = std::max(best.processor, megabytes / (processor_seconds() - spent));
  }
  return best;
}

struct NoRenderer final : RecordRenderer {
  void render(std::string_view, std::vector<RenderPiece>&) override { fail("format", "not a plain record"); }
};

void bench(const std::string& path, const std::string& tokenizer_path, int threads) {
  const double megabytes = static_cast<double>(std::filesystem::file_size(path)) / 1e6;
  ConvertOptions options;
  options.inputs = {path};
  options.output = path + ".bench.qubgpu";
  options.render.chatml = true;
  options.renderer = [] { return std::make_unique<NoRenderer>(); };
  const auto each_block = [&](const std::function<void(RecordBlock&)>& body) {
    InputReader reader(options, {});
    for (RecordBlock block; reader.next(block); block = {}) body(block);
  };
  const auto show = [&](const char* stage, Rate rate) {
    std::printf("%-48s %6.0f MB/s, %6.0f MB for a second of a core\n", stage, rate.wall, rate.processor);
  };
  show("read and cut", best_rate(megabytes, [&] { each_block([](RecordBlock&) {}); }));
  show("read, cut, parse", best_rate(megabytes, [&] {
         DocumentReader reader("");
         RecordContent document;
         each_block([&](RecordBlock& block) {
           for (const RecordSpan& span : block.records)
             reader.read(std::string_view(block.bytes).substr(span.begin, span.size), document);
         });
       }));
  for (const bool real : {false, true}) {
    options.tokenizer = real ? load_tokenizer(tokenizer_path) : free_tokenizer();
    const std::string name = real ? ", real tokenizer" : ", free tokenizer";
    show(("read, cut, parse, render, frame" + name).c_str(), best_rate(megabytes, [&] {
           BlockConverter converter(options);
           each_block([&](RecordBlock& block) {
             ConvertedBlock out;
             converter.convert(block, out);
           });
         }));
    options.threads = threads;
    show(("pipeline, " + std::to_string(threads) + " workers" + name).c_str(), best_rate(megabytes, [&] {
           Conversion conversion(options);
           while (!conversion.wait(1).done) {
           }
         }));
  }
  std::filesystem::remove(options.output);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: qeng_bench_convert DATA.jsonl TOKENIZER [THREADS]\n"), 2;
  try {
    bench(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : 2);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "qeng_bench_convert: %s\n", error.what()), 1;
  }
}
