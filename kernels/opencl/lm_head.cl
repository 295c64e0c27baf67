// The loss of an LM head. X: element type of h
#ifndef X
#define X f32
#endif

// One group of LANES: rows[i] is the i-th token with a target, places[t] the number of token t among these, or -1.
__kernel void list_rows(__global const int* targets, __global int* rows, __global int* places, long tokens, long vocab,
                        long most, __global Fault* fault) {
  __local long counts[LANES];
  const long lane = get_local_id(0), share = (tokens + LANES - 1) / LANES;
  const long begin = lane * share, end = min(begin + share, tokens);
  long count = 0;
  for (long t = begin; t < end; ++t) {
    if (targets[t] < -1 || targets[t] >= vocab) report(fault, FaultKind_target, t, targets[t], vocab);
    count += targets[t] >= 0 && targets[t] < vocab;
  }
  counts[lane] = count;
  barrier(CLK_LOCAL_MEM_FENCE);
  long before = 0, all = 0;
  for (int other = 0; other < LANES; ++other) {
    before += other < lane ? counts[other] : 0;
    all += counts[other];
  }
  if (lane == 0 && all > most) report(fault, FaultKind_trained, 0, all, most);
  for (long t = begin; t < end; ++t) {
    const bool trained = targets[t] >= 0 && targets[t] < vocab && before < most;
    places[t] = trained ? (int)before : -1;
    if (trained) rows[before++] = (int)t;
  }
  for (long i = all + lane; i < most; i += LANES) rows[i] = -1;
}

__kernel void gather_rows(__global const void* h, __global const int* rows, __global void* gathered, long hidden,
                          long count) {
  FOR_ITEM(i, count);
  const long row = rows[i / hidden];
  store(X, gathered, i, row < 0 ? 0.0f : load(X, h, row * hidden + i % hidden));
}
__kernel void scatter_rows(__global const void* gathered, __global const int* places, __global void* dh, long hidden,
                           long count) {
  FOR_ITEM(i, count);
  const long place = places[i / hidden];
  store(X, dh, i, place < 0 ? 0.0f : load(X, gathered, place * hidden + i % hidden));
}

// A group for each row of logits: its loss, and with `gradient` what the loss asks of them, in their place; 0 for a row
// without a target. (No return before a barrier, though all items would take it: PoCL 3.1 computes other things then.)
__kernel void row_loss(__global float* logits, __global const int* rows, __global const int* targets,
                       __global const float* loss_scale, __global float* nll, long vocab, float softcap, int gradient) {
  __local float exchange[LANES];
  const long row = get_group_id(0), lane = get_local_id(0), token = rows[row], target = token < 0 ? 0 : targets[token];
  __global float* z = logits + row * vocab;
  float top = -INFINITY, total = 0;
  for (long c = lane; c < vocab; c += LANES) {
    if (softcap > 0) z[c] = softcap * tanh(z[c] / softcap);
    if (z[c] > top || z[c] != z[c]) top = z[c];
  }
  top = max_of_lanes(top, exchange);
  for (long c = lane; c < vocab; c += LANES) total += exp(z[c] - top);
  total = sum_of_lanes(total, exchange);
  if (token >= 0 && target % LANES == lane) nll[token] = top + log(total) - z[target];  // who wrote it
  const float scale = token < 0 ? 0.0f : loss_scale[0];
  for (long c = lane; c < vocab && gradient; c += LANES) {
    const float p = exp(z[c] - top) / total, share = z[c] / softcap;
    const float dz = scale * (c == target ? p - 1.0f : p);
    z[c] = softcap > 0 ? dz * (1.0f - share * share) : dz;
  }
}

// One group.
__kernel void sum_loss(__global const float* nll, __global const float* loss_scale, __global float* loss, long tokens) {
  __local float exchange[LANES];
  float sum = 0;
  for (long t = get_local_id(0); t < tokens; t += LANES) sum += nll[t];
  sum = sum_of_lanes(sum, exchange);
  if (get_local_id(0) == 0) loss[0] = loss_scale[0] * sum;
}
