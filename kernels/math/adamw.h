// AdamW's update of one element (Loshchilov & Hutter 2019); the equation is over AdamW in kernels/ops.h.
#pragma once
#include "kernels/math/host_device.h"

namespace qeng {

// What is the same for all elements of a step.
struct AdamWStep {
  float beta1, beta2, eps;
  float clip;         // factor on the gradient
  float keep;         // 1 - lr * decay
  float rate;         // lr / (1 - beta1^t)
  float correction2;  // 1 / (1 - beta2^t)
};

// Updates m and v and returns the new w.
QENG_HD float adamw_update(const AdamWStep& step, float w, float grad, float* m, float* v) {
  const float g = step.clip * grad;
  *m = step.beta1 * *m + (1.0f - step.beta1) * g;
  *v = step.beta2 * *v + (1.0f - step.beta2) * g * g;
  return step.keep * w - step.rate * *m / (__builtin_sqrtf(*v * step.correction2) + step.eps);
}

}  // namespace qeng
