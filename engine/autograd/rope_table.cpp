#include "engine/autograd/rope_table.h"
#include <cmath>
#include "kernels/error.h"
namespace qeng { RopeFrequencies make_rope(const RopeOptions& o){ if (!o.words.empty()) fail("unsupported", "rope scaling"); RopeFrequencies r; r.scale=1; for(int i=0;i<o.dim/2;++i) r.inv_freq.push_back(static_cast<float>(1.0/std::pow(o.theta,2.0*i/o.dim))); return r;} }
