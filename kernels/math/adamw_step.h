// The numbers of one AdamW step. (Apart from adamw.h, since files of kernels/cpu/isa include no standard header.)
#pragma once
#include <math.h>

#include "kernels/math/adamw.h"

namespace qeng {

QENG_HD AdamWStep adamw_step(double lr, double t, float clip, float beta1, float beta2, float eps, float decay) {
  AdamWStep step;
  step.beta1 = beta1, step.beta2 = beta2, step.eps = eps, step.clip = clip;
  step.keep = static_cast<float>(1 - lr * static_cast<double>(decay));
  step.rate = static_cast<float>(lr / (1 - pow(static_cast<double>(beta1), t)));
  step.correction2 = static_cast<float>(1 / (1 - pow(static_cast<double>(beta2), t)));
  return step;
}

}  // namespace qeng
