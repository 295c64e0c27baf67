#include "engine/generate/carried_step.h"

#include <bit>
#include <cstring>

#include "kernels/error.h"

static_assert(std::endian::native == std::endian::little);  // the text is in this order

namespace qeng {
namespace {

constexpr int32_t kFormat = 1;
constexpr size_t kCounts =
    7;  // the numbers that stand first: format, rows, sequences, most, ranges, pairs, exact pairs

class Reader {
 public:
  Reader(std::string_view text, size_t at) : text_(text), at_(at) {}
  std::vector<int32_t> take(int64_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    if (count > 0) std::memcpy(values.data(), text_.data() + at_, values.size() * 4);
    at_ += values.size() * 4;
    return values;
  }

 private:
  std::string_view text_;
  size_t at_;
};

void within(const char* what, const std::vector<int32_t>& values, int64_t least, int64_t end) {
  for (int32_t value : values)
    if (value < least || value >= end)
      fail("format", "step: ", what, " ", value, " is outside ", least, " to ", end - 1);
}

}  // namespace

std::string pack_step(const CarriedStep& step) {
  const PagePool::Rows& rows = step.rows;
  std::string text;
  const auto put = [&](const std::vector<int32_t>& values) {
    text.append(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  };
  put({kFormat, static_cast<int32_t>(rows.slots.size()), static_cast<int32_t>(rows.lengths.size()),
       static_cast<int32_t>(step.most), static_cast<int32_t>(step.ranges.size()),
       static_cast<int32_t>(step.copies.size() / 2), static_cast<int32_t>(step.exact_copies.size() / 2)});
  for (const CarriedStep::Range& range : step.ranges) put({range.salt, range.first, range.count});
  put(step.copies), put(step.exact_copies);
  put(rows.positions), put(rows.slots), put(rows.exact_slots);
  put(rows.cu_q), put(rows.lengths), put(rows.before), put(rows.after);
  put(rows.pages), put(rows.exact);
  return text;
}

CarriedStep unpack_step(std::string_view text, const CarriedLimits& limits) {
  if (text.size() < kCounts * 4) fail("format", "step: ", text.size(), " bytes are no step");
  Reader reader(text, 0);
  const std::vector<int32_t> counts = reader.take(kCounts);
  const int64_t rows = counts[1], sequences = counts[2], most = counts[3], ranges = counts[4], pairs = counts[5],
                exact_pairs = counts[6];
  if (counts[0] != kFormat) fail("format", "step: of format ", counts[0], ", expected ", kFormat);
  if (rows < 1 || rows > limits.rows || sequences < 1 || sequences > limits.sequences || most < 1 || ranges < 1 ||
      ranges > rows || pairs < 0 || exact_pairs < 0 || pairs > 2 * limits.pages || exact_pairs > 2 * limits.pages ||
      most > 4 * limits.pages + 4)
    fail("format", "step: ", rows, " rows of ", sequences, " sequences on ", most,
         " pages do not fit what was opened: ", limits.rows, " rows, ", limits.sequences, " sequences, ", limits.pages,
         " pages");
  const int64_t expected = static_cast<int64_t>(kCounts) + 3 * ranges + 2 * (pairs + exact_pairs) + 3 * rows +
                           4 * sequences + 1 + 2 * sequences * most;
  if (static_cast<int64_t>(text.size()) != 4 * expected)
    fail("format", "step: ", text.size(), " bytes, its numbers ask for ", 4 * expected);

  CarriedStep step;
  step.most = most;
  int32_t next = 0;
  for (int64_t i = 0; i < ranges; ++i) {
    const std::vector<int32_t> range = reader.take(3);
    if (range[0] < 0 || range[1] != next || range[2] < 1 || range[2] > rows - next)
      fail("format", "step: the rows of adapters are not one after another");
    next += range[2];
    step.ranges.push_back({range[0], range[1], range[2]});
  }
  if (next != rows) fail("format", "step: adapters are told of ", next, " rows, and there are ", rows);
  step.copies = reader.take(2 * pairs), step.exact_copies = reader.take(2 * exact_pairs);
  within("a page to copy,", step.copies, 0, limits.pages);
  within("an exact page to copy,", step.exact_copies, 0, limits.exact_pages);

  PagePool::Rows& out = step.rows;
  out.tokens.assign(static_cast<size_t>(rows), 0);
  out.positions = reader.take(rows), out.slots = reader.take(rows), out.exact_slots = reader.take(rows);
  out.cu_q = reader.take(sequences + 1), out.lengths = reader.take(sequences);
  out.before = reader.take(sequences), out.after = reader.take(sequences);
  out.pages = reader.take(sequences * most), out.exact = reader.take(sequences * most);
  within("position", out.positions, 0, limits.positions);
  within("slot", out.slots, 0, limits.pages * limits.page_tokens);
  within("exact slot", out.exact_slots, -1, limits.exact_pages * limits.page_tokens);
  within("page before", out.before, 0, limits.pages + 1);
  within("page after", out.after, 0, limits.pages);
  within("page", out.pages, -1, limits.pages);
  within("exact page", out.exact, -1, limits.exact_pages);
  if (out.cu_q.front() != 0 || out.cu_q.back() != rows) fail("format", "step: cu_q does not go from 0 to ", rows);
  for (size_t i = 0; i < out.lengths.size(); ++i) {
    const int64_t count = static_cast<int64_t>(out.cu_q[i + 1]) - out.cu_q[i], length = out.lengths[i];
    if (count < 1 || count > length || length > most * limits.page_tokens)
      fail("format", "step: ", count, " rows of a sequence of ", length, " tokens on ", most, " pages");
    for (int64_t page = 0; page * limits.page_tokens < length; ++page)
      if (out.pages[i * static_cast<size_t>(most) + static_cast<size_t>(page)] < 0)
        fail("format", "step: page ", page, " of a sequence of ", length, " tokens is not told");
  }
  return step;
}

}  // namespace qeng
