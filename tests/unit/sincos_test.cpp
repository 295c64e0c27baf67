#include "kernels/math/sincos.h"

#include <cmath>
#include <random>

#include "tests/catch.h"

TEST_CASE("sin_cos is within two half ulps of 1 for any angle up to 2^31") {
  std::mt19937_64 engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  double worst = 0;
  for (const float most : {1.0f, 8.0f, 4096.0f, 131072.0f, 2147483520.0f})
    for (int i = 0; i < 200000; ++i) {
      const float angle = i % 2 ? std::rint(uniform(engine) * most) : uniform(engine) * most;
      float sine, cosine;
      qeng::sin_cos(angle, &sine, &cosine);
      worst = std::max(worst, std::fabs(sine - std::sin(static_cast<double>(angle))));
      worst = std::max(worst, std::fabs(cosine - std::cos(static_cast<double>(angle))));
    }
  CHECK(worst < 2 * 0x1p-24);  // the error that the conformance test allows a sine
  float sine, cosine;
  qeng::sin_cos(0, &sine, &cosine);
  CHECK((sine == 0 && cosine == 1));
}
