// The processes of a job that compute one thing together, as mpirun or srun started them. What they exchange is summed
// in the order of ranks or of micro-batches, so that a result does not depend on how many there are.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/ranks/transport.h"

namespace qeng {

class Device;

class Ranks {
 public:
  // Those of this process's job, joined at the first call; nullptr: it is alone. Error("unsupported") where a launcher
  // started several processes and this build cannot join them. Not for several threads at once.
  static Ranks* of_job();
  // The number of this process among those of its job on this machine, from 0, as the launcher says; 0: it is alone.
  static int of_machine();
  // Leaves the job where of_job() has joined one: the last thing that a process does whose part is done. Where one ends
  // without it, the launcher ends the others.
  static void leave();

  // device: what carries the memory of devices, if anything does.
  explicit Ranks(std::unique_ptr<Transport> transport, std::unique_ptr<Transport> device = nullptr);
  ~Ranks();
  // Rank 0 of so many that do not exist, for a rehearsal of what it computes and holds: nothing is sent or received.
  static std::unique_ptr<Ranks> imagined(int size);
  int rank() const;
  int size() const;
  Transport& transport();  // of the host's memory
  // What carries the memory of this device: transport(), unless there is one between devices. NCCL is tried for a GPU where
  // QENG_NCCL is set; Error("unsupported") where it does not start. All ranks call it at the same time.
  Transport& transport(Device& device);
  // Bytes that this rank has sent to others since that was last asked.
  double sent();

  void barrier() { transport().barrier(); }
  // Rank 0's text, for all.
  std::string tell(const std::string& text);
  // The text of each rank, in their order, for all.
  std::vector<std::string> texts(const std::string& own);
  // Number by number the sum of all ranks' lists, which are equally long: in the order of ranks.
  std::vector<double> sum(const std::vector<double>& numbers);

 private:
  class Counted;
  std::unique_ptr<Counted> transport_, device_;
};

}  // namespace qeng
