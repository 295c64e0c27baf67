// Sums of gradients over ranks, which are threads here: the order of micro-batches alone decides the bits.
#include <barrier>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "engine/ranks/gradient_sum.h"
#include "engine/ranks/shards.h"
#include "kernels/cpu/cpu.h"
#include "kernels/math/bf16.h"
#include "tests/catch.h"

namespace qeng {
namespace {

// What threads exchange lies where all of them see it.
struct Board {
  explicit Board(int n) : size(n), meet(n), sent(static_cast<size_t>(n)) {}
  const int size;
  std::barrier<> meet;
  std::vector<const char*> sent;
  std::vector<std::vector<size_t>> parts = std::vector<std::vector<size_t>>(sent.size());
};

class Thread final : public Transport {
 public:
  Thread(Board& b, int r, bool of_device = false) : board_(b), of_device_(of_device) { rank = r, size = b.size; }
  bool of_device() const override { return of_device_; }
  void barrier() override { board_.meet.arrive_and_wait(); }
  void broadcast(void* data, size_t bytes, int root) override {
    show(data, {});
    if (rank != root) std::memcpy(data, board_.sent[static_cast<size_t>(root)], bytes);
    barrier();
  }
  void exchange(const void* pieces, const std::vector<size_t>& send, void* received,
                const std::vector<size_t>& receive) override {
    show(pieces, send);
    char* to = static_cast<char*>(received);
    for (size_t r = 0; r < receive.size(); ++r) {
      const std::vector<size_t>& parts = board_.parts[r];
      if (parts[static_cast<size_t>(rank)] != receive[r]) std::abort();
      size_t at = 0;
      for (int i = 0; i < rank; ++i) at += parts[static_cast<size_t>(i)];
      if (receive[r]) std::memcpy(to, board_.sent[r] + at, receive[r]);
      to += receive[r];
    }
    barrier();
  }
  void gather(const void* piece, void* all, const std::vector<size_t>& bytes) override {
    const std::vector<char> own(static_cast<const char*>(piece),
                                static_cast<const char*>(piece) + bytes[static_cast<size_t>(rank)]);
    show(own.data(), {});
    char* to = static_cast<char*>(all);
    for (size_t r = 0; r < bytes.size(); ++r) {
      if (bytes[r]) std::memcpy(to, board_.sent[r], bytes[r]);
      to += bytes[r];
    }
    barrier();
  }
  void finish() override {}

 private:
  void show(const void* data, const std::vector<size_t>& parts) {
    board_.sent[static_cast<size_t>(rank)] = static_cast<const char*>(data);
    board_.parts[static_cast<size_t>(rank)] = parts;
    barrier();
  }
  Board& board_;
  const bool of_device_;
};

// A rank of the board. between_devices: gradients go between devices, and are summed there, as with NCCL; the CPU's memory
// is as good for that.
std::unique_ptr<Ranks> rank_of(Board& board, int r, bool between_devices) {
  return std::make_unique<Ranks>(std::make_unique<Thread>(board, r),
                                 between_devices ? std::make_unique<Thread>(board, r, true) : nullptr);
}

constexpr int64_t kSizes[] = {1, 77, 5000, 4096, 3}, kSent = 1000;  // at once: the third is more
constexpr int kBf16 = 3;                                            // which of them gathers its gradient in bf16

// A gradient of micro-batch m, drawn from its number.
std::vector<float> drawn(size_t parameter, int m) {
  std::mt19937 engine(static_cast<unsigned>(m * 100 + static_cast<int>(parameter)));
  std::vector<float> values(static_cast<size_t>(kSizes[parameter]));
  for (float& value : values) {
    value = std::ldexp(static_cast<float>(engine()), static_cast<int>(engine() % 20) - 40);
    if (parameter == kBf16) value = to_f32(to_bf16(value));
  }
  return values;
}

std::vector<TensorPtr> parameters_of(Device& device) {
  std::vector<TensorPtr> parameters;
  for (int64_t size : kSizes) {
    parameters.push_back(make_zeros(device, {1, size}, parameters.size() == kBf16 ? DType::bf16 : DType::f32));
    set_requires_grad(parameters.back(), true, parameters.size() - 1 == kBf16 ? DType::bf16 : DType::f32);
  }
  return parameters;
}

// A pass whose gradients are these tensors, those of the last parameters first.
std::unique_ptr<Program> pass_of(Device& device, const std::vector<TensorPtr>& gradients,
                                 const std::vector<TensorPtr>& parameters) {
  return Program::capture(device, [&] {
    for (size_t i = parameters.size(); i-- > 0;) device.run(Cast{gradients[i]->view, parameters[i]->grad->view});
  });
}

void set(const TensorPtr& tensor, const std::vector<float>& values) {
  from_host(*tensor, std::vector<double>(values.begin(), values.end()).data(), values.size());
}

void compute(Program& pass, const std::vector<TensorPtr>& gradients, const std::vector<TensorPtr>& parameters, int m) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    set(gradients[i], drawn(i, m));
    if (i != 1 || m == 2) parameters[i]->reached = true;
  }
  pass.run();
}

// Gradients of a step as they are summed on one rank.
std::vector<std::vector<float>> summed(int batches) {
  std::vector<std::vector<float>> sums;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    sums.push_back(drawn(i, 0));
    for (int m = 1; m < batches; ++m) {
      const std::vector<float> next = drawn(i, m);
      for (size_t k = 0; k < next.size(); ++k) sums[i][k] += next[k];
    }
    if (i == kBf16)
      for (float& value : sums[i]) value = to_f32(to_bf16(value));
  }
  return sums;
}

// A model of five units whose first and last share the first parameter. A pass adds gradients in the order of a tape, and
// looks at the weights that are there.
struct Sharded {
  Sharded(Ranks& ranks, Device& device, bool weights) {
    std::vector<StreamUnit> units;
    std::vector<std::vector<int>> owners;
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      const bool half = i == kBf16;
      parameters.push_back(make_zeros(device, {1, kSizes[i]}, half ? DType::bf16 : DType::f32));
      set(parameters.back(), drawn(i, 100));
      gradients.push_back(make_zeros(device, {1, kSizes[i]}, DType::f32));
      units.push_back({.name = std::to_string(i), .weights = {parameters.back()}});
      owners.push_back({static_cast<int>(i) % ranks.size()});
    }
    units.back().weights.push_back(parameters[0]), owners.back().push_back(0);
    shards = std::make_shared<Shards>(ranks, device, units, owners, weights);
    for (size_t i = 0; i < parameters.size(); ++i) shards->learn(parameters[i], i == kBf16 ? DType::bf16 : DType::f32);
  }
  void use(size_t unit, Pass pass) {
    use_weights(shards, static_cast<int>(unit), pass);
    const std::vector<float> values = to_host_f32(*parameters[unit]);
    right = right && values == drawn(unit, 100);
  }
  void compute(int m) {
    for (size_t i = 0; i < parameters.size(); ++i) use(i, Pass::forward);
    for (size_t i = parameters.size(); i-- > 0;) {
      if (i == 0) use_weights(shards, WeightStream::kNoUnit, Pass::backward);
      if (i > 0 && i + 1 < parameters.size()) use(i, Pass::backward);
      const TensorPtr& grad = parameters[i]->grad;
      set(gradients[i], drawn(i, m));
      const TensorPtr sum = make_like(*gradients[i]);
      copy_into(*sum, *grad);
      grad->device().run(Add{sum->view, gradients[i]->view, sum->view});
      copy_into(*grad, *sum);
      parameters[i]->reached = true;
    }
  }
  std::vector<TensorPtr> parameters, gradients;
  std::shared_ptr<Shards> shards;
  bool right = true;  // whether the weights of each unit were there
};

template <class F>
bool refused(F f) {
  try {
    f();
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("ranks sum gradients in the order of micro-batches, however many they are") {
  const bool between_devices = GENERATE(false, true);
  constexpr int kBatches = 5;
  const std::vector<std::vector<float>> expected = summed(kBatches);
  for (int size : {1, 2, 3, 5}) {
    Board board(size);
    std::vector<std::vector<std::vector<float>>> found(static_cast<size_t>(size));
    std::vector<int> reached(static_cast<size_t>(size));
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r)
      threads.emplace_back([&, r] {
        Device device(make_cpu_backend(1));
        const std::unique_ptr<Ranks> job = rank_of(board, r, between_devices);
        Ranks& ranks = *job;
        const std::vector<TensorPtr> parameters = parameters_of(device);
        std::vector<TensorPtr> gradients;
        for (int64_t elements : kSizes) gradients.push_back(make_zeros(device, {1, elements}, DType::f32));
        const std::unique_ptr<Program> pass = pass_of(device, gradients, parameters);
        GradientSum sum(ranks, device, parameters, kSent);
        const int rounds = (kBatches + size - 1) / size;
        for (int step = 0; step < 2; ++step) {  // the second begins anew, and sends while it computes
          if (step == 1) sum.watch(*pass);
          for (const TensorPtr& parameter : parameters) device.run(Fill{parameter->grad->view, 0});
          for (int round = 0; round < rounds; ++round) {
            const int m = round * size + r;
            sum.begin(std::min(size, kBatches - round * size), round == 0, round + 1 == rounds);
            if (m < kBatches) compute(*pass, gradients, parameters, m);
            sum.finish();
          }
        }
        for (const TensorPtr& parameter : parameters)
          found[static_cast<size_t>(r)].push_back(to_host_f32(*parameter->grad));
        for (const TensorPtr& parameter : parameters) reached[static_cast<size_t>(r)] += parameter->reached;

        // Then each parameter as its owner has it.
        const double mine = r;
        std::vector<int> owners;
        for (size_t i = 0; i < parameters.size(); ++i) {
          const std::vector<double> values(static_cast<size_t>(kSizes[i]), mine);
          from_host(*parameters[i], values.data(), values.size());
          owners.push_back(static_cast<int>(i) % size);
        }
        share_tensors(ranks, parameters, owners);
        for (size_t i = 0; i < parameters.size(); ++i)
          if (to_host(*parameters[i]) != std::vector<double>(static_cast<size_t>(kSizes[i]), owners[i]))
            reached[static_cast<size_t>(r)] = -1;
      });
    for (std::thread& thread : threads) thread.join();
    for (int r = 0; r < size; ++r) {
      CAPTURE(size, r, between_devices);
      CHECK(reached[static_cast<size_t>(r)] == static_cast<int>(std::size(kSizes)));
      for (size_t i = 0; i < std::size(kSizes); ++i) CHECK(found[static_cast<size_t>(r)][i] == expected[i]);
    }
  }
}

TEST_CASE("shards give each owner the gradients of all ranks, and each unit its weights") {
  const bool between_devices = GENERATE(false, true);
  constexpr int kBatches = 5;
  const std::vector<std::vector<float>> expected = summed(kBatches);
  for (const bool weights : {false, true})
    for (int size : {1, 2, 3, 5}) {
      Board board(size);
      std::vector<std::string> wrong(static_cast<size_t>(size));
      std::vector<std::thread> threads;
      for (int r = 0; r < size; ++r)
        threads.emplace_back([&, r] {
          std::string& found = wrong[static_cast<size_t>(r)];
          Device device(make_cpu_backend(1));
          const std::unique_ptr<Ranks> job = rank_of(board, r, between_devices);
          Ranks& ranks = *job;
          Sharded model(ranks, device, weights);
          const int rounds = (kBatches + size - 1) / size;
          for (int step = 0; step < 2; ++step) {
            for (int round = 0; round < rounds; ++round) {
              const int m = round * size + r;
              model.shards->begin(std::min(size, kBatches - round * size), round == 0, round + 1 == rounds);
              if (m < kBatches) model.compute(m);
              model.shards->finish();
            }
            for (size_t i = 0; i < std::size(kSizes); ++i) {
              const bool own = static_cast<int>(i) % size == r;
              if (own && to_host_f32(*model.parameters[i]->grad) != expected[i])
                found += "gradient " + std::to_string(i);
              if (!model.parameters[i]->reached) found += "not reached " + std::to_string(i);
              // What another rank has is refused, and not what lies there by chance.
              if (i == 0 || own) continue;
              if (!refused([&] { device.run(Fill{model.parameters[i]->grad->view, 0}); })) found += "written";
              if (weights && !refused([&] { to_host_f32(*model.parameters[i]); })) found += "read";
            }
          }
          if (!model.right) found += "weights";
          model.shards->gather();
          for (size_t i = 0; r == 0 && i < std::size(kSizes); ++i)
            if (to_host_f32(*model.parameters[i]) != drawn(i, 100)) found += "gathered " + std::to_string(i);
          model.shards->release();
        });
      for (std::thread& thread : threads) thread.join();
      CAPTURE(size, weights, between_devices);
      CHECK(wrong == std::vector<std::string>(static_cast<size_t>(size)));
    }
}

TEST_CASE("ranks tell a text, and texts and sums of all in their order") {
  Board board(3);
  std::vector<std::string> told(3);
  std::vector<std::vector<std::string>> texts(3);
  std::vector<std::vector<double>> sums(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      Ranks ranks(std::make_unique<Thread>(board, r));
      told[static_cast<size_t>(r)] = ranks.tell(r == 0 ? "the path" : "");
      texts[static_cast<size_t>(r)] = ranks.texts(r == 0 ? "cuda:0" : r == 1 ? "" : "cpu");
      sums[static_cast<size_t>(r)] = ranks.sum({r == 0 ? 1e30 : r == 1 ? -1e30 : 1.0, static_cast<double>(r)});
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t r = 0; r < 3; ++r) {
    CHECK(told[r] == "the path");
    CHECK(texts[r] == std::vector<std::string>{"cuda:0", "", "cpu"});
    CHECK(sums[r] == std::vector<double>{1.0, 3.0});
  }
}

}  // namespace qeng
