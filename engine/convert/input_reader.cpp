#include "engine/convert/input_reader.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {
constexpr size_t kBlockRead = 256 << 10;  // of text: enough to hide the hand-over, little enough to share out
constexpr size_t kMaxHeaderBytes = 1 << 20;
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
}  // namespace

InputReader::InputReader(const ConvertOptions& options, const InputPosition& from) : options_(options), at_(from) {}

// Appends up to `wanted` bytes to carry_.
size_t InputReader::fill(size_t wanted) {
  const size_t before = carry_.size();
  carry_.resize(before + wanted);
  size_t have = 0;
  while (have < wanted && !last_) {
    const size_t n = source_->read(&carry_[before + have], wanted - have);
    last_ = n == 0;
    have += n;
  }
  carry_.resize(before + have);
  consumed_.store(files_bytes_ + source_->consumed(), std::memory_order_relaxed);
  return have;
}

void InputReader::open() {
  const std::string& path = options_.inputs[at_.file];
  source_ = open_input(path);
  carry_.clear(), last_ = false, names_.reset();
  const InputPosition from = at_;
  at_ = {.file = from.file};
  fill(kBlockRead);
  if (carry_.starts_with("\xFF\xFE") || carry_.starts_with("\xFE\xFF"))
    fail("format", path, ": is UTF-16; make UTF-8 of it, for example with: iconv -f UTF-16 -t UTF-8");
  if (carry_.starts_with(kUtf8Mark)) carry_.erase(0, kUtf8Mark.size()), at_.offset = kUtf8Mark.size();
  format_ = options_.format ? options_.format : &detect_format(path, carry_);
  cutter_ = format_->is.cutter(options_.documents, path);
  names_ = std::make_shared<std::vector<std::string>>();
  if (format_->is.names) read_names();
  if (from.offset <= at_.offset) return;

  const uint64_t ahead = from.offset - at_.offset;  // of what carry_ begins with
  if (ahead <= carry_.size()) {
    carry_.erase(0, static_cast<size_t>(ahead));
  } else {
    source_->skip(ahead - carry_.size());
    carry_.clear();
  }
  cutter_->go_on(from.line, from.number, from.closed);
  at_ = from;
}

void InputReader::read_names() {
  std::vector<RecordSpan> rows;
  size_t used = 0;
  const std::string& path = options_.inputs[at_.file];
  while ((used = cutter_->cut(carry_, last_, rows)) == 0 && !last_) {
    if (carry_.size() > kMaxHeaderBytes) fail("format", path, ":1: the header is over 1 MiB long");
    fill(kBlockRead);
  }
  if (rows.empty()) return;
  try {
    names_ = std::make_shared<std::vector<std::string>>(
        format_->is.names(std::string_view(carry_).substr(rows[0].begin, rows[0].size)));
  } catch (const Error& error) {
    fail("format", path, ":", rows[0].line, ": ", error.what());
  }
  // The rows behind it are cut again, from the header's end.
  const size_t end = rows.size() > 1 ? rows[1].begin : used;
  const uint64_t line = rows.size() > 1 ? rows[1].line : cutter_->line;
  carry_.erase(0, end);
  at_.offset += end;
  cutter_ = format_->is.cutter(options_.documents, path);
  cutter_->go_on(line, 1, false);
  at_.line = line, at_.number = 1;
}

// carry_ begins with a record that is too long: drops it, reading on to its end.
void InputReader::reject_long(RecordBlock& block) {
  const uint64_t line = cutter_->line;
  bool done = false;
  for (;;) {
    const size_t dropped = cutter_->drop(carry_, last_, done);
    carry_.erase(0, dropped);
    at_.offset += dropped;
    if (done) break;
    fill(kBlockRead);
  }
  block.rejected.push_back({line, cutter_->number, "too long", too_long()});
}

std::string InputReader::too_long() const {
  const char* hint =
      format_->is.is_text ? "; cut the text into documents by paragraph or line" : "; raise the limit of a record";
  return "longer than " + std::to_string(options_.max_record_bytes >> 20) + " MiB" + hint;
}

void InputReader::close() {
  files_bytes_ += source_->consumed();
  source_.reset();
  at_ = {.file = at_.file + 1};
}

bool InputReader::next(RecordBlock& block) {
  if (at_.file == options_.inputs.size()) return false;
  if (!source_) open();
  block.file = at_.file, block.format = format_, block.names = names_;
  // A long record is looked through once for each doubling of what is held of it, so in linear time.
  if (carry_.size() < kBlockRead && !last_) fill(kBlockRead - carry_.size());
  size_t used = cutter_->cut(carry_, last_, block.records);
  while (used == 0 && !carry_.empty() && !(last_ && cutter_->closed)) {
    if (carry_.size() > options_.max_record_bytes) {
      reject_long(block);
      break;
    }
    if (last_) break;
    fill(std::min(std::max(carry_.size(), kBlockRead), options_.max_record_bytes + kBlockRead));
    used = cutter_->cut(carry_, last_, block.records);
  }
  for (auto span = block.records.begin(); span != block.records.end();) {
    if (span->size <= options_.max_record_bytes) {
      ++span;
      continue;
    }
    block.rejected.push_back({span->line, span->number, "too long", too_long()});
    span = block.records.erase(span);
  }
  block.bytes.assign(carry_, 0, used);
  block.bytes.append(DocumentReader::kPadding, '\0');
  carry_.erase(0, used);
  at_.offset += used, at_.line = cutter_->line, at_.number = cutter_->number, at_.closed = cutter_->closed;
  if (last_ && carry_.empty()) close();
  block.end = at_;
  return true;
}

}  // namespace qeng
