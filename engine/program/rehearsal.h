// A device that computes nothing: what runs on it allocates what it would allocate, plans the arenas it would plan, and
// adds up what its operations would cost. So the accounts and the time of a training step are known for a model far
// larger than the machine, from the very code that will train it.
//
// Memory is address space, which the system backs where it is written: operations write nowhere, and an upload of more
// than kReal bytes is left out. Smaller ones arrive, since costs depend on index lists (document boundaries, targets).
// All else reads as zero.
#pragma once
#include "kernels/backend.h"

namespace qeng {

class Rehearsal : public Backend {
 public:
  static constexpr size_t kReal = size_t{4}
                                  << 20;  // an index list of a million tokens; no weight worth its memory is smaller

  // A stand-in for `real`, which has to outlive it while it is in use. limits: of the device that is planned for; zeros
  // where they are not known. for_gpu: what is planned for is a GPU, though `real` may be none; one with memory for the
  // largest chunks.
  Rehearsal(const Backend& real, const Limits& limits, bool for_gpu = false);

  struct Work {
    double seconds = 0;  // at the limits; 0 where those are not known
    double flops_f32 = 0, flops_bf16 = 0, bytes = 0;
  };
  const Work& work() const { return work_; }  // of all operations so far

  bool computes() const override { return false; }
  std::string name() const override { return name_; }
  std::string description() const override { return description_; }
  void run(const Op& op) override;
  void synchronize() override {}
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
  void upload(void* device, const void* host, size_t bytes) override;
  void download(void* host, const void* device, size_t bytes) override;
  bool host_memory() const override { return real_.host_memory(); }
  bool reads_host_memory() const override { return real_.reads_host_memory(); }
  Memory memory() override { return {}; }
  int head_chunk(int64_t tokens, int64_t vocab) const override;
  double limit(Limit which) override { return limits_.*which; }

 private:
  const Backend& real_;
  std::string name_, description_;
  bool for_gpu_;
  Limits limits_;
  Work work_;
};

}  // namespace qeng
