#include "engine/packets/batch_maker.h"

#include <algorithm>
#include <cmath>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr int64_t kMaxSlots =
    int64_t{1} << 28;  // tokens of a batch: cu_seqlens is i32, and nobody has the memory for more
constexpr int64_t kMaxInteger = int64_t{1} << 53;
constexpr int kEmptyEpochs =
    1000;  // CRC-Drop may leave nothing of a small epoch; of so many in a row something is wrong

BatchOptions checked(BatchOptions o, const PacketFile& file) {
  const auto positive = [&](const char* name, int64_t value, int64_t from, int64_t to) {
    if (value < from || value > to) fail("value", "batches: ", name, " is ", value, ", expected ", from, " to ", to);
  };
  positive("row_tokens", o.row_tokens, 2, kMaxSlots);
  positive("rows", o.rows, 1, kMaxSlots / o.row_tokens);
  positive("ranks", o.ranks, 1, o.rows);
  positive("rank", o.rank, 0, o.ranks - 1);
  positive("batches_per_step", o.batches_per_step, 1, kMaxInteger - 1);
  positive("seed", o.seed, 0, kMaxInteger - 1);
  positive("epochs", o.epochs, 0, kMaxInteger - 1);
  positive("lookahead", o.lookahead, 1, kLookahead);
  positive("prefetch", o.prefetch, 0, 1024);
  positive("pad", o.pad, 0, o.vocab > 0 ? o.vocab - 1 : INT32_MAX);
  if (o.max_documents == 0) o.max_documents = o.rows * std::max<int64_t>(2, o.row_tokens / 4);
  positive("max_documents", o.max_documents, 2 * o.rows, kMaxSlots);
  if (!(o.max_damaged >= 0 && o.max_damaged <= 1))
    fail("value", "batches: max_damaged is ", o.max_damaged, ", expected 0 to 1");
  if (!(o.drop >= 0 && o.drop < 1)) fail("value", "batches: drop is ", o.drop, ", expected 0 or more and below 1");
  if (file.records() == 0) fail("value", file.path(), ": there is no record in it");
  if (file.payloads() > 0)
    fail("value", file.path(), ": ", file.payloads(), " of ", file.records(),
         " records are payloads and hold no tokens to train on: copy the records that have tokens to a file of their "
         "own");
  if (o.split == Split::eval) {
    if (o.eval_share == 0) fail("value", "batches: split = \"eval\" needs an eval_share above 0");
    if (o.drop > 0 || o.weights)
      fail("value", "batches: drop and weights are of training; split = \"eval\" reads every held-out record once");
    o.epochs = 1;
  }
  return o;
}

}  // namespace

Batches::Maker::Maker(std::shared_ptr<const PacketFile> file, const BatchOptions& options)
    : file_(std::move(file)),
      options_(checked(options, *file_)),
      local_rows_((options_.rows + options_.ranks - 1) / options_.ranks),
      documents_(options_.ranks == 1 ? options_.max_documents : options_.max_documents / options_.rows * local_rows_),
      sampler_(file_->records(), static_cast<uint64_t>(options_.seed), options_.split, options_.eval_share),
      drop_{static_cast<uint64_t>(options_.seed), options_.drop} {
  if (!options_.sources.empty()) {
    std::bitset<256> wanted;
    for (uint8_t source : options_.sources) wanted[source] = true;
    sampler_.select([&](uint64_t record) { return wanted[file_->info(record).src]; });
    if (sampler_.size() == 0)
      fail("value", file_->path(), ": no ", options_.split == Split::train ? "training" : "held-out",
           " record is of the sources asked for: give others, or another eval_share");
  }
  if (options_.weights) {
    mixture_.emplace(*file_, sampler_, static_cast<uint64_t>(options_.seed), drop_);
    mix_ = mixture_->start();
  }
}

Packer Batches::Maker::packer(int64_t epoch, const PackState& from, MixState& mix,
                              const std::vector<int64_t>& shares) const {
  std::unique_ptr<DocumentOrder> documents;
  if (mixture_) {
    documents = std::make_unique<MixedOrder>(*mixture_, mix, shares);
  } else {
    documents = std::make_unique<EpochOrder>(sampler_, static_cast<uint64_t>(epoch), drop_);
  }
  const auto pieces = static_cast<uint32_t>(options_.max_documents / options_.rows - 1);  // one is kept for the padding
  return Packer(*file_, std::move(documents), sampler_.size(), static_cast<uint32_t>(options_.row_tokens), pieces,
                options_.lookahead, options_.long_documents, options_.route, from);
}

BatchState Batches::Maker::state() const {
  BatchState state{options_.seed, epoch_, packer_ ? packer_->state() : PackState{}, mix_};
  if (mixture_ && packer_) state.mix.window = packer_->window();
  return state;
}

void Batches::Maker::check(const BatchState& state) const {
  if (state.seed != options_.seed)
    fail("value", "the saved position is of seed ", state.seed, ", these batches are of seed ", options_.seed);
  if (state.epoch < 0 || state.epoch >= kMaxInteger || (options_.epochs > 0 && state.epoch > options_.epochs))
    fail("value", "the saved position is of epoch ", state.epoch, ", these batches end after ", options_.epochs);
  const size_t sources = mixture_ ? mixture_->sources().size() : 0;
  bool good = state.mix.drawn.size() == sources && state.mix.earned.size() == sources;
  if (good && mixture_) {
    const uint64_t count = sampler_.size(), cursor = state.pack.cursor;
    const uint64_t window =
        state.pack == PackState{} ? 0 : std::min(count, cursor + static_cast<uint64_t>(options_.lookahead)) - cursor;
    good = cursor <= count && state.mix.window.size() == window;
    uint64_t drawn = 0;
    for (int64_t records : state.mix.drawn) drawn += static_cast<uint64_t>(records);
    good = good && drawn == static_cast<uint64_t>(state.epoch) * count + cursor + window;
    std::vector<int64_t> placed = state.mix.drawn;
    for (uint8_t source : state.mix.window) good = good && source < sources && --placed[source] >= 0;
  }
  if (!good)
    fail("value", file_->path(), ": the saved position is of ", state.mix.drawn.size(), " mixed sources, these are ",
         sources, ", or it is not of this data: resume with the data, sources and weights of the saved run");
}

void Batches::Maker::restore(const BatchState& state) {
  check(state);
  MixState mix = state.mix;
  if (!(state.pack == PackState{})) packer(state.epoch, state.pack, mix, shares_);  // refuses a wrong position
  epoch_ = settled_epoch_ = state.epoch, epoch_damaged_ = 0;
  mix_ = state.mix;
  packer_.reset();
  if (!(state.pack == PackState{})) packer_.emplace(packer(epoch_, state.pack, mix_, shares_));
  mix_.window.clear();
}

// The rows of the next global batch, which hold the documents of one destination where rows are routed. Returns how
// many pieces they hold.
uint64_t Batches::Maker::pack(Packer& packer, Rows& rows, PackCounts& own_counts, PackCounts& others) const {
  rows.resize(static_cast<size_t>(options_.rows));
  std::optional<uint8_t> destination;
  uint64_t placed = 0;
  for (int64_t r = 0; r < options_.rows; ++r) {
    std::vector<Piece>& row = rows[static_cast<size_t>(r)];
    packer.next_row(row, own(r) ? own_counts : others, destination);
    if (options_.route && !row.empty()) destination = file_->info(row[0].record).dst;
    placed += row.size();
  }
  return placed;
}

EpochPlan Batches::Maker::plan_epoch(int64_t epoch) const {
  EpochPlan plan;
  MixState mix;
  std::vector<int64_t> shares;
  if (mixture_) mix = mixture_->start(), shares = mixture_->shares(options_.weights(0, mixture_->sources()), 0);
  Rows rows;
  for (int64_t e = mixture_ ? 0 : epoch; e <= epoch; ++e) {  // what a mixture draws depends on what it drew
    plan = {};
    Packer lengths = packer(e, {}, mix, shares);
    while (pack(lengths, rows, plan.counts, plan.counts) > 0) {
      ++plan.batches;
      for (const std::vector<Piece>& row : rows) {
        plan.rows += !row.empty();
        for (const Piece& piece : row)
          if (piece.begin == 0) plan.trained_tokens += trained_tokens(piece);
      }
    }
  }
  for (uint64_t i = 0; i < sampler_.size(); ++i) {
    const RecordInfo info = file_->info(sampler_.record(i));
    ++plan.by_source[info.src], ++plan.by_destination[info.dst];
  }
  plan.padding_tokens =
      plan.batches * options_.rows * options_.row_tokens - static_cast<int64_t>(plan.counts.real_tokens);
  return plan;
}

// Targets of the document that begins with this piece, as far as it is placed.
uint64_t Batches::Maker::trained_tokens(const Piece& piece) const {
  const bool cut = options_.long_documents == LongDocuments::truncate;
  return cut ? file_->trained_tokens(piece.record, piece.tokens) : file_->info(piece.record).loss_tokens;
}

void Batches::Maker::begin(Batch& batch) const {
  const auto slots = static_cast<size_t>(local_rows_ * options_.row_tokens);
  batch.tokens.resize(slots);  // fill() writes every slot
  batch.targets.resize(slots);
  batch.positions.resize(slots);
  batch.cu_seqlens.assign(1, 0);
  batch.pad = options_.pad;
  batch.segments.clear();
  batch.frames.clear();
  batch.pieces.clear();
  batch.counts = {};
  batch.trained_tokens = batch.lost_targets = batch.damaged = batch.damaged_tokens = 0;
  batch.dst = 0;
  batch.wait_ms = 0;
}

bool Batches::Maker::plan(Batch& batch, const Request& request) {
  if (finished()) return false;
  if (request.failure) std::rethrow_exception(request.failure);
  if (request.shares) shares_ = *request.shares;
  begin(batch);
  PackCounts others;
  for (int empty = 0;; ++empty) {
    if (!packer_) packer_.emplace(packer(epoch_, {}, mix_, shares_));
    if (pack(*packer_, rows_, batch.counts, others) > 0) break;
    if (options_.drop == 0 || empty == kEmptyEpochs)
      fail("value", file_->path(), ": no document fits a row of ", options_.row_tokens,
           " tokens and long documents are left out: raise row_tokens, or choose long = \"split\" or \"truncate\"");
    packer_.reset(), ++epoch_;  // the whole epoch was dropped
    if (finished()) return false;
  }
  batch.epoch = epoch_;
  for (const std::vector<Piece>& row : rows_)
    if (options_.route && !row.empty()) batch.dst = file_->info(row[0].record).dst;
  for (int64_t local = 0; local < local_rows_; ++local) {
    const int64_t r = local * options_.ranks + options_.rank;
    int64_t slot = local * options_.row_tokens;
    if (r < options_.rows) {
      for (const Piece& piece : rows_[static_cast<size_t>(r)]) {
        const RecordInfo info = file_->info(piece.record);
        batch.segments.push_back({piece, slot, info.src, info.dst, false});
        slot += piece.tokens;
        batch.cu_seqlens.push_back(static_cast<int32_t>(slot));
      }
    }
    const auto row_end = static_cast<int32_t>((local + 1) * options_.row_tokens);
    if (batch.cu_seqlens.back() != row_end) batch.cu_seqlens.push_back(row_end);
  }
  batch.cu_seqlens.resize(static_cast<size_t>(documents_) + 1, batch.cu_seqlens.back());
  batch.last_of_epoch = packer_->done();
  if (batch.last_of_epoch) packer_.reset(), ++epoch_;
  if (mixture_) ++mix_.batches;
  batch.after = state();
  return true;
}

void Batches::Maker::fill(Batch& batch) const {
  constexpr size_t kAhead = 2;  // documents whose first lines are on their way from memory
  int64_t slot = 0;
  uint64_t checked = UINT64_MAX;
  bool good = false;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    Segment& segment = batch.segments[i];
    if (i + kAhead < batch.segments.size()) file_->prefetch(batch.segments[i + kAhead].piece.record);
    pad(batch, slot, segment.slot);
    slot = segment.slot + segment.piece.tokens;
    if (checked != segment.piece.record) {  // the pieces of a split document lie in rows that follow each other
      checked = segment.piece.record;
      good = file_->check(checked);
    }
    segment.damaged = !good;
    if (good) {
      lay(batch, segment);
    } else {
      pad(batch, segment.slot, slot);
      batch.damaged += 1, batch.damaged_tokens += segment.piece.tokens;
    }
  }
  const auto slots = static_cast<int64_t>(batch.tokens.size());
  pad(batch, slot, slots);
  file_->require_whole();
  if (!options_.stored) return;
  for (size_t rest = static_cast<size_t>(documents_) - batch.pieces.size() / 6; rest > 0; --rest)
    batch.pieces.insert(batch.pieces.end(), {slots, 0, 0, 0, 0, 0});
}

void Batches::Maker::pad(Batch& batch, int64_t begin, int64_t end) const {
  const auto fill = [&](std::vector<int32_t>& values, int32_t value) {
    std::fill(values.begin() + begin, values.begin() + end, value);
  };
  fill(batch.tokens, options_.pad), fill(batch.targets, -1), fill(batch.positions, 0);
}

void Batches::Maker::lay(Batch& batch, const Segment& segment) const {
  const Piece& piece = segment.piece;
  const RecordInfo info = file_->info(piece.record);
  const auto stored = file_->stored(piece.record);
  if (options_.stored) {
    batch.pieces.insert(batch.pieces.end(), {segment.slot, piece.tokens, static_cast<int64_t>(batch.frames.size()),
                                             piece.begin, info.tokens, int64_t{info.masked}});
    batch.frames.insert(batch.frames.end(), stored.begin(), stored.end());
  }
  const auto at = static_cast<size_t>(segment.slot);
  const PieceSlots slots = {&batch.tokens[at], &batch.targets[at], &batch.positions[at]};
  const PieceCounts counts = lay_piece(stored, info, piece.begin, piece.tokens, slots);
  const uint32_t limit = options_.vocab > 0 ? static_cast<uint32_t>(options_.vocab) : uint32_t{INT32_MAX};
  for (uint32_t i = 0; counts.largest >= limit && i < piece.tokens; ++i) {
    if (static_cast<uint32_t>(slots.tokens[i]) < limit) continue;
    fail("value", file_->path(), ": token ", piece.begin + i, " of record ", piece.record, " is ", slots.tokens[i],
         ", the vocabulary ends at ", limit, ": convert the data with the tokenizer of this model");
  }
  batch.trained_tokens += counts.trained;
  if (piece.begin > 0) batch.lost_targets += is_target(stored, info, piece.begin);
}

void Batches::Maker::settle(const Batch& batch) {
  if (settled_epoch_ != batch.epoch) settled_epoch_ = batch.epoch, epoch_damaged_ = 0;
  if (batch.damaged == 0) return;
  const double documents = static_cast<double>(sampler_.size()) / static_cast<double>(options_.ranks);  // read here
  for (const Segment& segment : batch.segments) {
    epoch_damaged_ += segment.damaged && segment.piece.begin == 0;
    if (segment.damaged && static_cast<double>(epoch_damaged_) > options_.max_damaged * documents)
      fail("format", file_->path(), ": ", epoch_damaged_, " of ", static_cast<uint64_t>(std::ceil(documents)),
           " documents are damaged, the last being record ", segment.piece.record, "; more than ",
           options_.max_damaged * 100, " % (max_damaged) is not trained on: convert the data again");
  }
}

}  // namespace qeng
