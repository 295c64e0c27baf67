// The words for what a device's kernel found wrong, the same for all devices.
#pragma once
#include "kernels/error.h"
#include "kernels/fault.h"

namespace qeng {

[[noreturn]] inline void throw_fault(const Fault& fault) {
  switch (fault.kind) {
    case FaultKind::token:
      fail("value", "token ", fault.value, " at position ", fault.place, " is outside the table of ", fault.limit,
           " rows");
    case FaultKind::target:
      fail("value", "target ", fault.value, " at position ", fault.place, " is outside the vocabulary of ", fault.limit,
           " (-1: not trained)");
    case FaultKind::piece:
      fail("value", "decode_packets: piece ", fault.place, " does not fit the slots or the frames");
    case FaultKind::slot:
      fail("value", "kv_store: slot ", fault.value, " at position ", fault.place, " is outside the pool of ",
           fault.limit, " slots (-1: nowhere)");
    case FaultKind::pair:
      fail("value", "copy_pages: page ", fault.value, " of pair ", fault.place, " is outside the pool of ", fault.limit,
           " pages");
    case FaultKind::page:
      fail("value", "page ", fault.value, " of sequence ", fault.place, " is outside the pool of ", fault.limit,
           " pages");
    case FaultKind::queries:
      fail("value", "paged_attention: cu_q[", fault.place, "] is ", fault.value,
           "; expected ascending from 0 to at most ", fault.limit);
    case FaultKind::length:
      fail("value", "lengths[", fault.place, "] is ", fault.value,
           "; expected at least the sequence's rows here and at most the ", fault.limit, " of its pages");
    case FaultKind::index:
      fail("value", "index ", fault.value, " at position ", fault.place, " is outside [0, ", fault.limit, ")");
    case FaultKind::experts:
      fail("value", "first[", fault.place, "] is ", fault.value, "; expected ascending from 0 to at most the ",
           fault.limit, " rows");
    case FaultKind::trained:
      fail("value", "lm_head_loss: ", fault.value, " rows have a target, and at most ", fault.limit,
           " were expected: where targets were changed, say how many are trained, or leave that out");
    default:
      fail("value", "document boundary ", fault.place, " is ", fault.value, "; expected ascending from 0 to at most ",
           fault.limit);
  }
}

}  // namespace qeng
