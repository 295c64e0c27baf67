// The processes of a job that compute one thing together, as mpirun or srun started them. What they exchange is summed
// in the order of ranks or of micro-batches, so that a result does not depend on how many there are.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/ranks/transport.h"

namespace qeng {

class Ranks {
 public:
  // Those of this process's job, joined at the first call; nullptr: it is alone. Error("unsupported") where a launcher
  // started several processes and this build cannot join them. Not for several threads at once.
  static Ranks* of_job();
  // Leaves the job where of_job() has joined one: the last thing that a process does whose part is done. Where one ends
  // without it, the launcher ends the others.
  static void leave();

  explicit Ranks(std::unique_ptr<Transport> transport);
  int rank() const { return transport_->rank; }
  int size() const { return transport_->size; }
  Transport& transport() { return *transport_; }

  void barrier() { transport_->barrier(); }
  // Rank 0's text, for all.
  std::string tell(const std::string& text);
  // Number by number the sum of all ranks' lists, which are equally long: in the order of ranks.
  std::vector<double> sum(const std::vector<double>& numbers);

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace qeng
