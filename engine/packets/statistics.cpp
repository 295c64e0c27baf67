#include "engine/packets/statistics.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/parallel.h"

namespace qeng {
namespace {

constexpr uint64_t kChunk =
    512;  // records that a thread takes at a time: long enough to share nothing, short enough to end together
constexpr size_t kGroups = 16;

struct Fingerprint {
  uint64_t hash;
  uint64_t record : 56, src : 8;
};

// One thread's share.
struct Part {
  std::map<int, SourceStatistics> sources;
  std::map<uint32_t, uint64_t> lengths, trained_lengths;
  int32_t highest_token = -1;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
};

bool among(const std::vector<int32_t>& ends, int32_t token) {
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

void answers(const Part& part, uint32_t trained, const std::vector<int32_t>& ends, SourceStatistics& counts) {
  bool inside = false, said = false;
  int32_t last = -1;  // the last target
  const auto close = [&] {
    if (inside) ++counts.answers, counts.empty_answers += !ends.empty() && !said;
    inside = said = false;
  };
  for (size_t i = 0; i < part.tokens.size(); ++i) {
    if (!part.mask.empty() && !part.mask[i]) {
      close();
      continue;
    }
    inside = true, last = part.tokens[i];
    said = said || !among(ends, part.tokens[i]);
  }
  close();
  if (trained == 0) {
    ++counts.untrained;
  } else if (!ends.empty() && !among(ends, last)) {
    ++counts.truncated;
  }
}

void take(const PacketFile& file, uint64_t record, const std::vector<int32_t>& ends, Part& part, Fingerprint& print) {
  const RecordInfo info = file.info(record);
  print = {0, UINT64_MAX >> 8, info.src};  // no record has this number: it is in no group
  if (info.tokens == 0) return;            // a payload
  SourceStatistics& counts = part.sources[info.src];
  ++counts.records;
  if (!file.read(record, part.tokens, part.mask)) {
    ++counts.damaged;
    return;
  }
  const auto tokens = static_cast<uint32_t>(part.tokens.size());
  const uint32_t trained = info.loss_tokens;
  counts.tokens += tokens;
  counts.trained += trained;
  counts.shortest = std::min(counts.shortest, tokens);
  counts.longest = std::max(counts.longest, tokens);
  ++part.lengths[tokens];
  ++part.trained_lengths[trained];
  answers(part, trained, ends, counts);
  for (const int32_t token : part.tokens) part.highest_token = std::max(part.highest_token, token);
  print.hash = xxh3(part.tokens.data(), part.tokens.size() * sizeof(int32_t)), print.record = record;
}

// Sorts by content, then by record: in each run of equal hashes the first is the original.
void find_duplicates(const PacketFile& file, std::vector<Fingerprint>& prints, PacketStatistics& all) {
  std::erase_if(prints, [](const Fingerprint& p) { return p.record == UINT64_MAX >> 8; });
  std::sort(prints.begin(), prints.end(), [](const Fingerprint& a, const Fingerprint& b) {
    return a.hash < b.hash || (a.hash == b.hash && a.record < b.record);
  });
  for (size_t begin = 0; begin < prints.size();) {
    size_t end = begin + 1;
    while (end < prints.size() && prints[end].hash == prints[begin].hash) ++end;
    const uint32_t tokens = file.info(prints[begin].record).tokens;
    for (size_t i = begin + 1; i < end; ++i) {
      SourceStatistics& counts = all.sources[static_cast<int>(prints[i].src)];
      ++counts.duplicates;
      counts.duplicate_tokens += tokens;
    }
    if (end - begin > 1) all.groups.push_back({end - begin, prints[begin].record, tokens});
    if (all.groups.size() >= 4 * kGroups || (end == prints.size() && !all.groups.empty())) {
      std::sort(all.groups.begin(), all.groups.end(), [](const DuplicateGroup& a, const DuplicateGroup& b) {
        return a.records > b.records || (a.records == b.records && a.first < b.first);
      });
      all.groups.resize(std::min(all.groups.size(), kGroups));
    }
    begin = end;
  }
}

}  // namespace

void SourceStatistics::add(const SourceStatistics& other) {
  records += other.records, damaged += other.damaged;
  tokens += other.tokens, trained += other.trained, untrained += other.untrained;
  answers += other.answers, empty_answers += other.empty_answers, truncated += other.truncated;
  duplicates += other.duplicates, duplicate_tokens += other.duplicate_tokens;
  shortest = std::min(shortest, other.shortest), longest = std::max(longest, other.longest);
}

PacketStatistics packet_statistics(const PacketFile& file, const StatisticsOptions& options) {
  const uint64_t records = file.records();
  const auto cores = static_cast<uint64_t>(options.threads > 0 ? options.threads : available_threads());
  const auto threads = static_cast<size_t>(std::clamp<uint64_t>((records + kChunk - 1) / kChunk, 1, cores));
  std::vector<Fingerprint> prints(records);
  std::vector<Part> parts(threads);
  std::atomic<uint64_t> next{0};
  std::exception_ptr thrown;
  std::mutex guard;
  const auto work = [&](Part& part) {
    try {
      for (uint64_t begin = next.fetch_add(kChunk); begin < records; begin = next.fetch_add(kChunk))
        for (uint64_t record = begin; record < std::min(begin + kChunk, records); ++record)
          take(file, record, options.ends, part, prints[record]);
    } catch (...) {
      const std::lock_guard lock(guard);
      thrown = std::current_exception();
      next = records;
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < threads; ++i) others.emplace_back(work, std::ref(parts[i]));
  work(parts[0]);
  for (std::thread& other : others) other.join();
  if (thrown) std::rethrow_exception(thrown);

  PacketStatistics all;
  for (const Part& part : parts) {
    for (const auto& [source, counts] : part.sources) all.sources[source].add(counts);
    for (const auto& [length, count] : part.lengths) all.lengths[length] += count;
    for (const auto& [length, count] : part.trained_lengths) all.trained_lengths[length] += count;
    all.highest_token = std::max(all.highest_token, part.highest_token);
  }
  find_duplicates(file, prints, all);
  for (const auto& [source, counts] : all.sources) all.total.add(counts);
  return all;
}

}  // namespace qeng
