#include "engine/train/batch_stage.h"

namespace qeng {

BatchStage::BatchStage(Device& device, const Batch& batch) : device_(device) {
  const auto i32 = [&](size_t count) {
    return make_tensor(device, {static_cast<int64_t>(count)}, DType::i32, "batch");
  };
  const size_t slots = batch.tokens.size();
  for (Place& place : places_) {
    place.tensors = {i32(slots), i32(slots), i32(slots), i32(batch.cu_seqlens.size())};
    place.pieces = make_tensor(device, {static_cast<int64_t>(batch.pieces.size() / 6), 6}, DType::i64, "batch");
  }
  device.backend().synchronize();  // memory of the cache may be in use still, and ahead() would not wait for that
}

bool BatchStage::fits(const Batch& batch) const {
  const Place& place = places_[0];
  return place.tensors.tokens->view.elements() == static_cast<int64_t>(batch.tokens.size()) &&
         place.tensors.cu_seqlens->view.elements() == static_cast<int64_t>(batch.cu_seqlens.size()) &&
         place.pieces->view.elements() == static_cast<int64_t>(batch.pieces.size());
}

void BatchStage::fill(Place& place, const Batch& batch) {
  Backend& backend = device_.backend();
  View frames = place.frames->view, pieces = place.pieces->view, bounds = place.tensors.cu_seqlens->view;
  frames.shape[0] = static_cast<int64_t>(batch.frames.size());
  backend.upload(frames.data, batch.frames.data(), batch.frames.size());
  backend.upload(pieces.data, batch.pieces.data(), pieces.bytes());
  backend.upload(bounds.data, batch.cu_seqlens.data(), bounds.bytes());
  backend.run(DecodePackets{frames, pieces, place.tensors.tokens->view, place.tensors.targets->view,
                            place.tensors.positions->view, batch.pad});
}

void BatchStage::send(std::shared_ptr<const Batch> batch) {
  Place& place = places_[next_];
  if (place.holds && place.holds.use_count() > 1) return;
  next_ = 1 - next_;
  const auto bytes = static_cast<int64_t>(batch->frames.size());
  if (!place.frames || place.frames->view.elements() < bytes) {
    place.frames = make_tensor(device_, {bytes + bytes / 4 + 64}, DType::u8, "batch");
    device_.backend().synchronize();  // as above
  }
  device_.backend().ahead([&] { fill(place, *batch); });
  place.holds = std::move(batch);
}

void BatchStage::load(const Batch& batch, const Tensors& tensors) {
  for (Place& place : places_)
    if (place.holds.get() == &batch) {
      place.holds.reset();
      device_.run(Copy{place.tensors.tokens->view, tensors.tokens->view});
      device_.run(Copy{place.tensors.targets->view, tensors.targets->view});
      device_.run(Copy{place.tensors.positions->view, tensors.positions->view});
      device_.run(Copy{place.tensors.cu_seqlens->view, tensors.cu_seqlens->view});
      return;
    }
  from_host_i32(*tensors.tokens, batch.tokens.data(), batch.tokens.size());
  from_host_i32(*tensors.targets, batch.targets.data(), batch.targets.size());
  from_host_i32(*tensors.positions, batch.positions.data(), batch.positions.size());
  from_host_i32(*tensors.cu_seqlens, batch.cu_seqlens.data(), batch.cu_seqlens.size());
}

}  // namespace qeng
