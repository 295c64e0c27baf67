#include "engine/packets/batch_maker.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr int64_t kMaxSlots =
    int64_t{1} << 28;  // tokens of a batch: cu_seqlens is i32, and nobody has the memory for more
constexpr int64_t kMaxInteger = int64_t{1} << 53;

BatchOptions checked(BatchOptions o, const PacketFile& file) {
  const auto positive = [&](const char* name, int64_t value, int64_t from, int64_t to) {
    if (value < from || value > to) fail("value", "batches: ", name, " is ", value, ", expected ", from, " to ", to);
  };
  positive("row_tokens", o.row_tokens, 2, kMaxSlots);
  positive("rows", o.rows, 1, kMaxSlots / o.row_tokens);
  positive("seed", o.seed, 0, kMaxInteger - 1);
  positive("epochs", o.epochs, 0, kMaxInteger - 1);
  positive("lookahead", o.lookahead, 1, kLookahead);
  positive("prefetch", o.prefetch, 0, 1024);
  positive("pad", o.pad, 0, o.vocab > 0 ? o.vocab - 1 : INT32_MAX);
  if (o.max_documents == 0) o.max_documents = o.rows * std::max<int64_t>(2, o.row_tokens / 4);
  positive("max_documents", o.max_documents, 2 * o.rows, kMaxSlots);
  if (!(o.max_damaged >= 0 && o.max_damaged <= 1))
    fail("value", "batches: max_damaged is ", o.max_damaged, ", expected 0 to 1");
  if (file.records() == 0) fail("value", file.path(), ": there is no record in it");
  if (o.split == Split::eval) {
    if (o.eval_share == 0) fail("value", "batches: split = \"eval\" needs an eval_share above 0");
    o.epochs = 1;
  }
  return o;
}

}  // namespace

std::vector<int64_t> BatchState::integers() const {
  std::vector<int64_t> out = {seed, epoch, static_cast<int64_t>(pack.cursor), pack.placed};
  for (size_t word = 0; word < kLookahead / 32; ++word) {
    int64_t bits = 0;
    for (size_t i = 0; i < 32; ++i) bits |= int64_t{pack.gone[word * 32 + i]} << i;
    out.push_back(bits);
  }
  return out;
}

BatchState BatchState::from_integers(const std::vector<int64_t>& in) {
  if (in.size() != 4 + kLookahead / 32)
    fail("value", "a batch state is ", 4 + kLookahead / 32, " integers, this has ", in.size());
  for (int64_t value : in)
    if (value < 0 || value >= kMaxInteger) fail("value", "a batch state holds no integer like ", value);
  if (in[3] > UINT32_MAX) fail("value", "a batch state holds no piece of ", in[3], " tokens");
  BatchState state{in[0], in[1], {static_cast<uint64_t>(in[2]), static_cast<uint32_t>(in[3]), {}}};
  for (size_t word = 0; word < kLookahead / 32; ++word) {
    if (in[4 + word] > UINT32_MAX) fail("value", "a batch state holds no word of ", in[4 + word]);
    for (size_t i = 0; i < 32; ++i) state.pack.gone[word * 32 + i] = in[4 + word] >> i & 1;
  }
  return state;
}

Batches::Maker::Maker(std::shared_ptr<const PacketFile> file, const BatchOptions& options)
    : file_(std::move(file)),
      options_(checked(options, *file_)),
      sampler_(file_->records(), static_cast<uint64_t>(options_.seed), options_.split, options_.eval_share) {
  start_epoch(0);
}

Packer Batches::Maker::packer(int64_t epoch) const {
  const auto pieces = static_cast<uint32_t>(options_.max_documents / options_.rows - 1);  // one is kept for the padding
  return Packer(*file_, sampler_.order(static_cast<uint64_t>(epoch)), sampler_.size(),
                static_cast<uint32_t>(options_.row_tokens), pieces, options_.lookahead, options_.long_documents);
}

void Batches::Maker::start_epoch(int64_t epoch) {
  epoch_ = epoch, epoch_damaged_ = 0;
  packer_.emplace(packer(epoch));
}

BatchState Batches::Maker::state() const { return {options_.seed, epoch_, packer_->state()}; }

void Batches::Maker::restore(const BatchState& state) {
  if (state.seed != options_.seed)
    fail("value", "the saved position is of seed ", state.seed, ", these batches are of seed ", options_.seed);
  if (state.epoch < 0 || state.epoch >= kMaxInteger || (options_.epochs > 0 && state.epoch > options_.epochs))
    fail("value", "the saved position is of epoch ", state.epoch, ", these batches end after ", options_.epochs);
  Packer fresh = packer(state.epoch);
  fresh.restore(state.pack);
  start_epoch(state.epoch);
  packer_->restore(state.pack);
}

EpochPlan Batches::Maker::plan_epoch(int64_t epoch) const {
  EpochPlan plan;
  Packer lengths = packer(epoch);
  std::vector<Piece> row;
  for (lengths.next_row(row, plan.counts); !row.empty(); lengths.next_row(row, plan.counts)) ++plan.rows;
  plan.batches = (plan.rows + options_.rows - 1) / options_.rows;
  plan.padding_tokens =
      plan.batches * options_.rows * options_.row_tokens - static_cast<int64_t>(plan.counts.real_tokens);
  return plan;
}

void Batches::Maker::begin(Batch& batch) const {
  const auto slots = static_cast<size_t>(options_.rows * options_.row_tokens);
  batch.tokens.assign(slots, options_.pad);
  batch.targets.assign(slots, -1);
  batch.positions.assign(slots, 0);
  batch.cu_seqlens.assign(1, 0);
  batch.pad = options_.pad;
  batch.segments.clear();
  batch.frames.clear();
  batch.pieces.clear();
  batch.counts = {};
  batch.trained_tokens = batch.lost_targets = batch.damaged = batch.damaged_tokens = 0;
  batch.epoch = epoch_;
  batch.last_of_epoch = false;
  batch.wait_ms = 0;
}

bool Batches::Maker::next(Batch& batch) {
  if (finished()) return false;
  begin(batch);
  int64_t placed = 0;
  for (int64_t r = 0; r < options_.rows; ++r) {
    packer_->next_row(row_, batch.counts);
    int64_t slot = r * options_.row_tokens;
    for (const Piece& piece : row_) {
      lay(batch, piece, slot);
      slot += piece.tokens;
      batch.cu_seqlens.push_back(static_cast<int32_t>(slot));
    }
    const auto end = static_cast<int32_t>((r + 1) * options_.row_tokens);
    if (batch.cu_seqlens.back() != end) batch.cu_seqlens.push_back(end);
    placed += static_cast<int64_t>(row_.size());
  }
  if (placed == 0)
    fail("value", file_->path(), ": no document fits a row of ", options_.row_tokens,
         " tokens and long documents are dropped: raise row_tokens, or choose long = \"split\"");
  batch.cu_seqlens.resize(static_cast<size_t>(options_.max_documents) + 1, batch.cu_seqlens.back());
  if (options_.stored) {
    const auto slots = static_cast<int64_t>(batch.tokens.size());
    for (size_t rest = static_cast<size_t>(options_.max_documents) - batch.pieces.size() / 6; rest > 0; --rest)
      batch.pieces.insert(batch.pieces.end(), {slots, 0, 0, 0, 0, 0});
  }
  packer_->drop_long(batch.counts);
  batch.last_of_epoch = packer_->done();
  if (batch.last_of_epoch) start_epoch(epoch_ + 1);
  batch.after = state();
  return true;
}

void Batches::Maker::lay(Batch& batch, const Piece& piece, int64_t slot) {
  const RecordInfo info = file_->info(piece.record);
  if (document_record_ != piece.record) {  // the pieces of a split document lie in rows that follow each other
    document_good_ = file_->read(piece.record, document_, mask_);
    document_record_ = piece.record;
  }
  const bool good = document_good_;
  batch.segments.push_back({piece, slot, info.src, info.dst, !good});
  if (!good) return damaged(batch, piece);
  if (options_.stored) {
    const auto stored = file_->stored(piece.record);
    batch.pieces.insert(batch.pieces.end(), {slot, piece.tokens, static_cast<int64_t>(batch.frames.size()), piece.begin,
                                             info.tokens, int64_t{info.masked}});
    batch.frames.insert(batch.frames.end(), stored.begin(), stored.end());
  }

  int32_t* tokens = &batch.tokens[static_cast<size_t>(slot)];
  int32_t* targets = &batch.targets[static_cast<size_t>(slot)];
  int32_t* positions = &batch.positions[static_cast<size_t>(slot)];
  const int32_t limit = options_.vocab > 0 ? options_.vocab : INT32_MAX;
  for (uint32_t i = 0; i < piece.tokens; ++i) {
    const int32_t token = document_[piece.begin + i];
    if (token < 0 || token >= limit)
      fail("value", file_->path(), ": token ", piece.begin + i, " of record ", piece.record, " is ", token,
           ", the vocabulary ends at ", limit, ": convert the data with the tokenizer of this model");
    tokens[i] = token, positions[i] = static_cast<int32_t>(i);
  }
  for (uint32_t i = 0; i + 1 < piece.tokens; ++i) {
    if (!mask_.empty() && !mask_[piece.begin + i + 1]) continue;
    targets[i] = tokens[i + 1];
    ++batch.trained_tokens;
  }
  if (piece.begin > 0) batch.lost_targets += mask_.empty() || mask_[piece.begin];
}

void Batches::Maker::damaged(Batch& batch, const Piece& piece) {
  batch.damaged += 1, batch.damaged_tokens += piece.tokens;
  if (piece.begin == 0) ++epoch_damaged_;
  if (static_cast<double>(epoch_damaged_) > options_.max_damaged * static_cast<double>(sampler_.size()))
    fail("format", file_->path(), ": ", epoch_damaged_, " of ", sampler_.size(),
         " documents are damaged, the last being record ", piece.record, "; more than ", options_.max_damaged * 100,
         " % (max_damaged) is not trained on: convert the data again");
}

}  // namespace qeng
