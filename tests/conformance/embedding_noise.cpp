// EmbeddingNoise.
#include "tests/conformance/philox.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op embedding_noise(Draw& draw) {
  draw.sometimes_misalign();
  EmbeddingNoise op;
  const Documents documents = draw.documents(5, 30);
  op.x = draw.tensor(draw.float_dtype(), {documents.queries, draw.size(200)});
  op.cu = documents.cu_q, op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.rng = draw.rng();
  op.strength = draw.pick({0.0f, 5.0f, 15.0f});
  op.subsequence = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

}  // namespace

template <class T>
void reference(const EmbeddingNoise& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> x = sheet.in(op.x);
  const auto rng = sheet.integers(op.rng), cu = sheet.integers(op.cu);
  Array<T>& y = sheet.out(op.y);
  const int64_t n = op.x.columns(), rows = op.x.rows();
  for (int64_t t = 0; t < rows; ++t) {
    int64_t length = rows;
    for (size_t d = 1; d < cu.size(); ++d)
      if (cu[d - 1] <= t && t < cu[d]) length = cu[d] - cu[d - 1];
    const T strength = T(op.strength) / sqrt(T(static_cast<double>(length * n)));
    for (int64_t i = 0; i < n; ++i) {
      const double u = philox_uniform(rng, op.subsequence, t * n + i);
      y(t, i) = x(t, i) + strength * T(2 * u - 1);
    }
  }
}

QENG_CONFORMANCE(EmbeddingNoise, .make = embedding_noise, .free_shape = {"cu"});

}  // namespace qeng::conformance
