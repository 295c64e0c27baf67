// What streams of weights have in common: the units they are made of, their figures, their end.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor/tensor.h"

namespace qeng {

struct StreamUnit {
  std::string name;                // "layers.3"
  std::vector<TensorPtr> weights;  // those that lie in a file's or the host's memory; others stay where they are
  bool rows_only = false;          // of the embedding few rows are read
  bool writable = false;           // their memory is SpilledFile's, which keeps what is written
};

// What was streamed since the stream was made. Of a recorded program that ran more than once since they were last asked
// for, the times are those of the last run.
struct StreamFigures {
  double bytes = 0;            // brought to where they are used, and back where they learn
  double fetch_seconds = 0;    // spent on that, beside the computation or in its way
  double stalled_seconds = 0;  // that the computation waited
  int64_t fetches = 0;
  int depth = 1;  // units brought ahead
};

class StreamedWeights : public WeightStream {
 public:
  explicit StreamedWeights(Device& device) : device_(device), keeps_(device.weak_from_this().lock()) {}
  Device& device() const { return device_; }
  virtual StreamFigures figures() = 0;
  virtual size_t resident() = 0;       // bytes of units that are where they are read
  virtual size_t total() const = 0;    // of all units
  virtual size_t process() const = 0;  // what the limit has to leave beside units
  virtual size_t filed() const = 0;    // bytes of units that are read from their file whenever they are brought
  // Whether a recording may repeat its UseWeights without calling use().
  virtual bool recordable() const { return true; }
  // Before a UseWeights of the unit is run or captured: from here on tensors of the unit, and of no other, are where
  // that brings them.
  virtual void show(int unit) { (void)unit; }
  // Copies that a recorded program repeated without calling use().
  virtual void repeated(const StreamFigures& copies) { (void)copies; }
  // Ends streaming. On the host weights are read where they are mapped from now on; on another device they are gone.
  virtual void close() = 0;

 protected:
  Device& device_;

 private:
  std::shared_ptr<Device> keeps_;
};

// Runs UseWeights, or leaves it to the program being captured, which keeps the stream.
inline void use_weights(const std::shared_ptr<StreamedWeights>& stream, int unit, Pass pass) {
  stream->show(unit);
  if (Captured* captured = stream->device().captured()) captured->streams.insert(stream);
  stream->device().run(UseWeights{stream.get(), unit, pass});
}

}  // namespace qeng
