#include "engine/convert/convert.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <thread>

#include "engine/convert/input_reader.h"
#include "engine/convert/journal.h"
#include "kernels/error.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {
using Clock = std::chrono::steady_clock;
constexpr uint64_t kBytesInFlight = 48 << 20;  // of text between reader and writer; one longer record passes alone
constexpr size_t kBlocksPerWorker = 8;         // in flight: none waits for another, and small blocks stay few
constexpr size_t kShownBad = 10;
constexpr uint64_t kHopeless = 1000;  // so many records, all bad: the format or the shape is another one
constexpr int kConverterVersion = 2;  // of the result: another one is not resumed

// All that decides the result.
nlohmann::json settings_of(const ConvertOptions& options) {
  nlohmann::json inputs = nlohmann::json::array();
  for (const std::string& path : options.inputs) {
    if (!readable_twice(path)) continue;
    const InputIdentity identity = identify_input(path);
    inputs.push_back({{"path", path}, {"bytes", identity.bytes}, {"head_hash", identity.head_hash}});
  }
  nlohmann::json settings = options.settings;
  settings["converter"] = kConverterVersion;
  settings["inputs"] = inputs;
  settings["format"] = options.format ? options.format->is.name : "auto";
  settings["documents"] = static_cast<int>(options.documents);
  settings["tokenizer_hash"] = options.tokenizer->hash();
  settings["chatml"] = options.render.chatml;
  settings["system"] =
      options.render.default_system ? nlohmann::json(*options.render.default_system) : nlohmann::json();
  settings["turns"] = static_cast<int>(options.render.turns);
  settings["special"] = options.render.text_special ? "parse" : "text";
  settings["text_begin"] = options.render.text_begin.value_or(-1);
  settings["text_end"] = options.render.text_end.value_or(-1);
  settings["max_tokens"] = options.max_tokens;
  settings["long"] = static_cast<int>(options.longer);
  settings["dedupe"] = options.dedupe;
  settings["max_record"] = options.max_record_bytes;
  settings["source"] = options.source ? nlohmann::json(*options.source) : nlohmann::json();
  settings["source_field"] = options.source_field;
  settings["source_names"] = options.source_names;
  settings["destination"] = options.destination;
  settings["meta"] = options.meta;
  return settings;
}

void check(const ConvertOptions& options) {
  if (options.inputs.empty()) fail("value", "convert: no input");
  if (options.output.empty()) fail("value", "convert: no output");
  if (options.max_tokens == 0 && options.longer != LongRecords::keep)
    fail("value", "convert: what to do with long records needs a limit: give max_tokens");
  if (options.max_record_bytes < 1024 || options.max_record_bytes > (size_t{1} << 30))
    fail("value", "convert: max_record of ", options.max_record_bytes, " bytes, expected 1 KiB to 1 GiB");
}
}  // namespace

struct Conversion::Work {
  explicit Work(ConvertOptions given) : options(std::move(given)) {}

  ConvertOptions options;
  nlohmann::json settings;
  bool resumable = true;  // a pipe cannot be read again
  int workers = 1;
  std::unique_ptr<DatasetSpool> spool;
  std::unique_ptr<InputReader> reader;
  std::vector<std::thread> threads;

  std::mutex mutex;
  std::condition_variable room, ready, written, changed;  // for the reader, workers, writer, wait()
  std::deque<RecordBlock> blocks;                         // cut, in order
  std::map<uint64_t, ConvertedBlock> converted;           // by sequence, waiting for their turn
  uint64_t in_flight = 0, in_flight_bytes = 0, sequence = 0;
  bool read_all = false, stopping = false, finished = false;
  std::exception_ptr error;
  ConvertStatus status;

  // The writer's own.
  InputPosition position;
  std::vector<BadRecord> bad;
  Clock::time_point last_checkpoint = Clock::now();

  void begin();
  void read();
  void work();
  void write();
  void take(ConvertedBlock& block);
  void checkpoint();
  void finish();
  void fail_with(std::exception_ptr problem);
  template <class Body>
  void launch(Body body);
  void join();
  std::string place(const ConvertedBlock& block, const Rejected& record) const;
};

void Conversion::Work::fail_with(std::exception_ptr problem) {
  const std::lock_guard lock(mutex);
  if (!error) error = problem;
  stopping = true;
  room.notify_all(), ready.notify_all(), written.notify_all(), changed.notify_all();
}

// Signals are the main thread's: Lua's handler must not run in these.
template <class Body>
void Conversion::Work::launch(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  threads.emplace_back([this, body] {
    try {
      body();
    } catch (...) {
      fail_with(std::current_exception());
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Conversion::Work::join() {
  for (std::thread& thread : threads)
    if (thread.joinable()) thread.join();
  threads.clear();
}

void Conversion::Work::begin() {
  check(options);
  resumable = std::all_of(options.inputs.begin(), options.inputs.end(), readable_twice);
  for (const std::string& path : options.inputs)
    if (readable_twice(path)) open_input(path);  // is it there, and of a kind we read?
  settings = settings_of(options);
  for (const auto& input : settings["inputs"]) status.bytes_total += input["bytes"].get<uint64_t>();
  if (!resumable) status.bytes_total = 0;

  std::optional<Journal> journal;
  if (options.resume && !resumable)
    fail("value", "a conversion of standard input or a pipe cannot be resumed: write it to a file first");
  if (options.resume) journal = read_journal(options.output, settings);
  if (options.resume && !journal)
    status.notes.push_back(options.output + ": nothing to resume, begins at the first record");
  if (!options.resume && DatasetSpool::exists(options.output))
    status.notes.push_back(options.output +
                           ".partial of an interrupted conversion is replaced (resuming would go on with it)");
  spool = std::make_unique<DatasetSpool>(options.output, options.dedupe);
  if (journal) {
    spool->go_on(journal->spool);
    position = journal->position, bad = journal->bad;
    status.counts = journal->counts;
    status.bytes_text = status.bytes_skipped = journal->bytes_text;
    status.notes.push_back(options.output + ": resumed after " + std::to_string(journal->counts.seen) + " records");
  } else {
    remove_journal(options.output);
    spool->begin();
  }
  reader = std::make_unique<InputReader>(options, position);
  workers = options.threads > 0 ? options.threads : available_threads();
  launch([this] { read(); });
  for (int i = 0; i < workers; ++i) launch([this] { work(); });
  launch([this] { write(); });
}

void Conversion::Work::read() {
  const size_t limit = kBlocksPerWorker * static_cast<size_t>(workers);
  for (;;) {
    RecordBlock block;
    const bool more = reader->next(block);
    std::unique_lock lock(mutex);
    status.bytes_read = reader->consumed();
    if (more) {
      const uint64_t bytes = block.bytes.size();
      room.wait(lock, [&] {
        return stopping || in_flight == 0 || (in_flight < limit && in_flight_bytes + bytes <= kBytesInFlight);
      });
    }
    if (!more || stopping) {
      read_all = true;
      return ready.notify_all(), written.notify_all();
    }
    block.sequence = sequence++;
    in_flight += 1, in_flight_bytes += block.bytes.size();
    blocks.push_back(std::move(block));
    ready.notify_one();
  }
}

void Conversion::Work::work() {
  BlockConverter converter(options);
  for (;;) {
    RecordBlock block;
    {
      std::unique_lock lock(mutex);
      ready.wait(lock, [&] { return error || !blocks.empty() || read_all; });
      if (error || blocks.empty()) return;
      block = std::move(blocks.front());
      blocks.pop_front();
    }
    ConvertedBlock out;
    out.bytes = block.bytes.size() - DocumentReader::kPadding;
    converter.convert(block, out);
    const std::lock_guard lock(mutex);
    converted.emplace(block.sequence, std::move(out));
    written.notify_one();
  }
}

std::string Conversion::Work::place(const ConvertedBlock& block, const Rejected& record) const {
  const std::string& path = options.inputs[block.file];
  return (path == "-" ? "standard input" : path) + ":" + std::to_string(record.line);
}

void Conversion::Work::take(ConvertedBlock& block) {
  const size_t duplicates = spool->add(block.frames, block.records);
  std::stable_sort(block.rejected.begin(), block.rejected.end(),
                   [](const Rejected& a, const Rejected& b) { return a.number < b.number; });
  position = block.end;
  const std::lock_guard lock(mutex);
  ConvertCounts& counts = status.counts;
  counts.seen += block.seen, counts.bad += block.rejected.size();
  counts.longer += block.longer, counts.repaired += block.repaired, counts.duplicates += duplicates;
  counts.records = spool->records(), counts.tokens = spool->tokens(), counts.targets = spool->loss_tokens();
  for (const Rejected& record : block.rejected) {
    ++counts.bad_by_reason[record.reason];
    if (bad.size() == kShownBad) continue;
    bad.push_back({place(block, record), record.message});
    status.bad.push_back(bad.back());
  }
  status.bytes_text += block.bytes;
  if (counts.records == 0 && counts.bad >= kHopeless && counts.bad == counts.seen && options.max_bad < 1)
    fail("format", options.inputs[block.file], ": all of the first ", counts.seen,
         " records are bad, as those named above; nothing was written");
}

void Conversion::Work::checkpoint() {
  last_checkpoint = Clock::now();
  if (!resumable) return;
  Journal journal;
  journal.settings = settings, journal.position = position, journal.bad = bad;
  journal.spool = spool->checkpoint();
  {
    const std::lock_guard lock(mutex);
    journal.counts = status.counts, journal.bytes_text = status.bytes_text;
  }
  write_journal(options.output, journal);
}

void Conversion::Work::write() {
  for (uint64_t next = 0;; ++next) {
    ConvertedBlock block;
    {
      std::unique_lock lock(mutex);
      written.wait(lock, [&] { return error || converted.count(next) || (read_all && next == sequence); });
      if (error) return;
      const auto found = converted.find(next);
      if (found == converted.end()) break;
      block = std::move(found->second);
      converted.erase(found);
    }
    take(block);
    {
      const std::lock_guard lock(mutex);
      in_flight -= 1, in_flight_bytes -= block.bytes + DocumentReader::kPadding;
      room.notify_one();
    }
    if (std::chrono::duration<double>(Clock::now() - last_checkpoint).count() >= options.checkpoint_seconds)
      checkpoint();
  }
  bool interrupted = false;
  {
    const std::lock_guard lock(mutex);
    interrupted = stopping;
  }
  if (!interrupted) return finish();
  checkpoint();
  if (!resumable) fail("interrupted", options.output, ": stopped; what comes from a pipe cannot be resumed");
  fail("interrupted", options.output, ": stopped after ", status.counts.seen, " records, and can be resumed");
}

void Conversion::Work::finish() {
  const ConvertCounts counts = status.counts;
  const double bad_share = static_cast<double>(counts.bad) / static_cast<double>(std::max<uint64_t>(counts.seen, 1));
  const char* others = options.inputs.size() > 1 ? " and others: " : ": ";
  if (counts.records == 0)
    fail("format", options.inputs.front(), others, counts.bad, " of ", counts.seen,
         " records are bad; nothing was written");
  if (bad_share > options.max_bad)
    fail("format", options.inputs.front(), others, counts.bad, " of ", counts.seen,
         " records are bad; nothing was written. Mend them, or leave them out: allow a share of bad records of ",
         std::ceil(bad_share * 100) / 100);
  nlohmann::json meta = options.meta;
  meta["conversion"] = to_json(counts);
  spool->finish(std::move(meta));
  remove_journal(options.output);
  const std::lock_guard lock(mutex);
  status.done = finished = true;
  changed.notify_all();
}

Conversion::Conversion(ConvertOptions options) : work_(std::make_unique<Work>(std::move(options))) { work_->begin(); }

Conversion::~Conversion() {
  stop();
  work_->join();
}

ConvertStatus Conversion::wait(double seconds) {
  Work& work = *work_;
  std::unique_lock lock(work.mutex);
  work.changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return work.finished || work.error; });
  if (work.error && work.status.bad.empty() && work.status.notes.empty()) {  // what is left to tell is told first
    const std::exception_ptr error = work.error;
    lock.unlock();
    work.join();
    // What stopped for a reason that a resume mends is kept; the rest would only lie about.
    try {
      std::rethrow_exception(error);
    } catch (const Error& problem) {
      if (!work.resumable || (problem.code != "interrupted" && problem.code != "io")) abandon();
    } catch (const std::exception&) {
    }
    std::rethrow_exception(error);
  }
  ConvertStatus status = work.status;
  work.status.bad.clear();
  work.status.notes.clear();
  return status;
}

void Conversion::stop() {
  Work& work = *work_;
  const std::lock_guard lock(work.mutex);
  work.stopping = true;
  work.room.notify_all(), work.ready.notify_all(), work.written.notify_all();
}

void Conversion::abandon() {
  stop();
  work_->join();
  if (work_->finished) return;
  work_->spool->remove();
  remove_journal(work_->options.output);
}

}  // namespace qeng
