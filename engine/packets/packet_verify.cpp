// PacketFile::verify: every block's hash and every record's frames, by all cores, a block of 1 MiB at a time, so that
// a byte comes from memory once.
#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/formats/arrival.h"
#include "engine/formats/mapped_file.h"
#include "engine/packets/packet_file.h"
#include "kernels/error.h"
#include "kernels/parallel.h"

namespace qeng {

// One block, and the records that begin in it.
void PacketFile::verify_block(uint64_t block, PacketReport& report) const {
  const uint64_t from = block * kBlockBytes, bytes = std::min<uint64_t>(kBlockBytes, frames_.size() - from);
  if (xxh3(frames_.data() + from, bytes) != hashes_[block]) {
    ++report.bad_blocks;
    if (report.bad_offsets.size() < PacketReport::kNamed) report.bad_offsets.push_back(header_.frames_offset + from);
  }
  const IndexEntry* end = index_ + header_.records;
  const auto before = [](const IndexEntry& e, uint64_t offset) { return e.offset < offset; };
  for (const IndexEntry* e = std::lower_bound(index_, end, from, before); e != end && e->offset < from + bytes; ++e) {
    const auto record = static_cast<uint64_t>(e - index_);
    const uint64_t at = damaged_at(record);
    if (at == UINT64_MAX) continue;
    ++report.bad_records;
    report.errors.count(e->src);
    if (report.damage.size() < PacketReport::kNamed)
      report.damage.push_back({record, header_.frames_offset + at, e->src});
  }
}

PacketReport PacketFile::verify(const std::function<void(uint64_t)>& progress, uint64_t first, uint64_t count) const {
  using Clock = std::chrono::steady_clock;
  const uint64_t blocks = header_.blocks(), from = std::min(first, blocks), end = from + std::min(count, blocks - from);
  if (arrival_) arrival_->wait(0, file_->size());
  std::atomic<uint64_t> next{from};
  const auto take = [&](PacketReport& report, const auto& after) {
    for (uint64_t block = next++; block < end; block = next++) verify_block(block, report), after(block);
  };
  // Each thread takes blocks in ascending order, so the first kNamed of all are among each one's first kNamed.
  const uint64_t threads =
      std::clamp<uint64_t>(static_cast<uint64_t>(available_threads()), 1, std::max<uint64_t>(end - from, 1));
  std::vector<PacketReport> reports(threads);
  {
    std::vector<std::thread> others;
    struct Join {
      std::vector<std::thread>& threads;
      std::atomic<uint64_t>& next;
      uint64_t end;
      ~Join() {  // also where progress() throws: the others then stop at their next block
        next = end;
        for (std::thread& thread : threads) thread.join();
      }
    };
    const Join join{others, next, end};
    for (uint64_t i = 1; i < threads; ++i) others.emplace_back([&, i] { take(reports[i], [](uint64_t) {}); });
    Clock::time_point last = Clock::now();
    take(reports[0], [&](uint64_t block) {
      if (!progress || Clock::now() - last < std::chrono::milliseconds(100)) return;
      last = Clock::now();
      progress(std::min<uint64_t>(header_.frames_bytes, (block + 1) * kBlockBytes));
    });
  }
  require_whole();

  PacketReport report;
  report.records = header_.records, report.blocks = blocks;
  for (const PacketReport& part : reports) {
    report.bad_records += part.bad_records, report.bad_blocks += part.bad_blocks;
    report.damage.insert(report.damage.end(), part.damage.begin(), part.damage.end());
    report.bad_offsets.insert(report.bad_offsets.end(), part.bad_offsets.begin(), part.bad_offsets.end());
    report.errors.total += part.errors.total;
    for (size_t src = 0; src < 256; ++src) report.errors.by_source[src] += part.errors.by_source[src];
  }
  std::sort(report.damage.begin(), report.damage.end(),
            [](const auto& a, const auto& b) { return a.record < b.record; });
  std::sort(report.bad_offsets.begin(), report.bad_offsets.end());
  report.damage.resize(std::min(report.damage.size(), PacketReport::kNamed));
  report.bad_offsets.resize(std::min(report.bad_offsets.size(), PacketReport::kNamed));
  return report;
}

}  // namespace qeng
