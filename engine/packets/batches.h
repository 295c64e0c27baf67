// Packed micro-batches of a fixed shape, made ahead of time by a thread. What they hold is a function of the file, the
// options and the position alone: it does not depend on timing, and a run that resumes from a state gets the same rest.
//
// Ranks share one global sequence of rows: a global batch is `rows` rows, whatever the number of ranks, of which rank r
// gets rows r, r + ranks, ... (and a row of padding where they run out). All ranks have the same state after a batch,
// so a run saved by some number of ranks goes on with any other.
//
//   row:     document | document | ... | padding        every row's end is also the end of a document
//   targets: targets[t] = tokens[t + 1] where t + 1 is of the same piece and is trained, else -1
//   padding: pad token, target -1, position 0; the padding of a row is a segment of its own in cu_seqlens
//
// Documents longer than a row are split, cut, left out or refused, as LongDocuments says; the pieces of a split one
// restart their positions, and the first token of a later piece is no target (counted in lost_targets). A document
// whose frames are damaged leaves its room as padding, so that the packing does not depend on damage; it is counted,
// and more than max_damaged of an epoch's documents is Error("format"). A batch never spans two epochs: an epoch's last
// batch may end with rows of padding. With `weights`, records come from a Mixture, and an epoch is as many draws as
// there are records.
#pragma once
#include <memory>
#include <optional>

#include "engine/packets/mixture.h"
#include "engine/packets/packer.h"

namespace qeng {

struct BatchOptions {
  int64_t row_tokens = 2048;
  int64_t rows = 1;             // of the global batch
  int64_t rank = 0, ranks = 1;  // ranks: at most rows
  int64_t max_documents = 0;    // segments of cu_seqlens, padding included, were there one rank; a row holds at most
                                // max_documents / rows (2 or more). 0: a quarter of the tokens, enough for rows of
                                // four-token documents
  int64_t seed = 0;             // 0 .. 2^53 - 1
  Split split = Split::train;
  double eval_share = 0;  // give the same for train and eval
  int64_t epochs = 0;     // stop after so many; 0: never. Evaluation makes one pass
  int lookahead = kLookahead;
  LongDocuments long_documents = LongDocuments::automatic;
  int32_t pad = 0;
  int32_t vocab = 0;  // a token at or over it is Error("value"); 0: no limit
  double max_damaged = 0.01;
  std::vector<uint8_t> sources = {};  // only records of these SRC; empty: all. What is held out does not depend on it
  double drop = 0;                    // CRC-Drop, 0 .. below 1; training only
  // A curriculum; training only. Called by next(), on its thread, once a step, as many batches ahead as are prefetched.
  SourceWeights weights = {};
  int64_t batches_per_step = 1;  // which tells the step of a batch
  bool route = false;            // every batch holds documents of one destination (DST): Batch::dst
  int prefetch = 2;              // batches made ahead; 0: made when asked for, without a thread
  bool stored = false;           // also give frames and pieces, for a device that decodes them itself
};

// Where a run stands: enough for the very next batch. As integers (for a checkpoint): below 2^53 each, exact in Lua and
// JSON. Seed, epoch, cursor and what is placed of its document; a bit for each document of the lookahead; of a mixture,
// two more for each source, and the sources of the lookahead.
struct BatchState {
  int64_t seed = 0, epoch = 0;
  PackState pack;
  MixState mix = {};  // empty without a mixture
  std::vector<int64_t> integers() const;
  static BatchState from_integers(const std::vector<int64_t>& integers);  // Error("value")
  bool operator==(const BatchState&) const = default;
};

// A piece of a document where it lies in the batch.
struct Segment {
  Piece piece;
  int64_t slot;  // of its first token
  uint8_t src, dst;
  bool damaged;  // its slots are padding
};

struct Batch {
  std::vector<int32_t> tokens, targets, positions;  // [rows of this rank * row_tokens]
  std::vector<int32_t> cu_seqlens;                  // [max_documents + 1], the last value repeated to the end
  std::vector<Segment> segments;                    // the documents, in order of their slots
  int32_t pad = 0;
  std::vector<uint8_t> frames;  // BatchOptions::stored: the documents' frames as the file has them,
  std::vector<int64_t> pieces;  // and where their tokens go, [max_documents, 6]: DecodePackets in
                                // kernels/ops.h turns both into tokens, targets and positions
  PackCounts counts;            // of this rank's rows, damaged documents included
  int64_t trained_tokens = 0;   // targets that are not -1
  int64_t lost_targets = 0;     // trained tokens that stand first in a later piece of a split document
  int64_t damaged = 0;          // pieces whose document could not be read
  int64_t damaged_tokens = 0;
  int64_t epoch = 0;
  uint8_t dst = 0;  // BatchOptions::route: of every document of the global batch
  bool last_of_epoch = false;
  double wait_ms = 0;  // how long next() waited for it
  BatchState after;    // the state with which the next batch begins
};

struct EpochPlan {
  int64_t batches = 0, rows = 0;
  PackCounts counts;            // of all ranks
  uint64_t trained_tokens = 0;  // the first tokens of later pieces of split documents still count
  std::array<uint64_t, 256> by_source{}, by_destination{};  // documents of each SRC, of each DST
  int64_t padding_tokens = 0;  // of rows * row_tokens, the rows of padding that fill the last batch included
};

class Batches {
 public:
  Batches(std::shared_ptr<const PacketFile> file, const BatchOptions& options);
  ~Batches();

  // The next batch into `batch` (its memory is reused); false after the last epoch. Rethrows what the thread met.
  bool next(Batch& batch);

  BatchState state() const;               // as it stands after the last batch that next() gave
  void restore(const BatchState& state);  // Error("value") where it is of another seed, data set or packing

  // Packs the lengths of an epoch (0: the first) without reading a token: about 3 M documents a second. A curriculum is
  // planned as if the weights of step 0 stayed.
  EpochPlan plan_epoch(int64_t epoch = 0) const;
  int64_t max_documents() const;
  const BatchOptions& options() const;
  const PacketFile& file() const;

 private:
  class Maker;
  class Prefetch;
  struct Request;
  Request request();

  std::unique_ptr<Maker> maker_;
  std::unique_ptr<Prefetch> prefetch_;  // declared last: its thread uses maker_ and ends first
  BatchState state_;
  int64_t requested_ = 0;  // batches whose shares were asked for
  int64_t step_ = -1;      // whose shares are in shares_
  std::shared_ptr<const std::vector<int64_t>> shares_;
};

}  // namespace qeng
