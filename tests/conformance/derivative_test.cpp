#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

double objective(const Chain& chain, Sheet<double> sheet) {  // sum(out * dout) with the sheet's inputs
  run_reference(chain.forward, sheet);
  auto results = chain.more;
  results.push_back({chain.out, chain.dout});
  double sum = 0;
  for (const auto& [out, gradient] : results) {
    const Array<double> dout = sheet.in(gradient);
    for (int64_t i = 0; i < dout.size(); ++i) sum += sheet.results[out.data].array[i] * dout[i];
  }
  return sum;
}

}  // namespace

TEST_CASE("every gradient is the derivative of its forward op") {
  for (const OpTest& test : op_tests())
    for (const Derivative& derivative : test.derivatives) DYNAMIC_SECTION(derivative.name) {
        for (uint64_t round = 0; round < 20; ++round) {
          const uint64_t seed = base_seed() + round;
          Draw draw(seed);
          const Chain chain = derivative.make(draw);
          INFO("QENG_SEED=" << seed << "\n" << describe(chain.forward));

          Sheet<double> forward, gradient;
          run_reference(chain.forward, forward);
          for (const View& saved : chain.saved) gradient.given[saved.data] = forward.results[saved.data].array;
          for (const Op& op : chain.gradients) run_reference(op, gradient);

          for (const auto& [input, output] : chain.pairs) {
            // One random direction a pair: a wrong entry anywhere shows in it with probability one.
            Sheet<double> plus, minus;
            Array<double> direction = plus.in(input), up = direction, down = direction;
            double along = 0, scale = 1e-3, step = 1e-5;  // central differences: error step^2 + 1e-16 / step
            for (int64_t i = 0; i < direction.size(); ++i) {
              direction[i] = draw.normal();
              up[i] += step * direction[i], down[i] -= step * direction[i];
              along += gradient.results[output.data].array[i] * direction[i];
              scale += std::fabs(gradient.results[output.data].array[i] * direction[i]);
            }
            plus.given[input.data] = up, minus.given[input.data] = down;
            const double measured = (objective(chain, plus) - objective(chain, minus)) / (2 * step);
            CHECK(std::fabs(measured - along) < 1e-6 * scale);
          }
        }
      }
}
