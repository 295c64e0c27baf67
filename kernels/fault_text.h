// The words for what a device's kernel found wrong with the values it was given, the same for all devices. Fault: a
// record with kind, an enumerator of the kinds below, and the numbers place, value and limit.
#pragma once
#include "kernels/error.h"

namespace qeng {

template <class Fault>
[[noreturn]] void throw_fault(const Fault& fault) {
  using Kind = decltype(fault.kind);
  switch (fault.kind) {
    case Kind::token:
      fail("value", "token ", fault.value, " at position ", fault.place, " is outside the table of ", fault.limit,
           " rows");
    case Kind::target:
      fail("value", "target ", fault.value, " at position ", fault.place, " is outside the vocabulary of ", fault.limit,
           " (-1: not trained)");
    case Kind::piece: fail("value", "decode_packets: piece ", fault.place, " does not fit the slots or the frames");
    case Kind::slot:
      fail("value", "kv_store: slot ", fault.value, " at position ", fault.place, " is outside the pool of ",
           fault.limit, " slots (-1: nowhere)");
    case Kind::pair:
      fail("value", "copy_pages: page ", fault.value, " of pair ", fault.place, " is outside the pool of ", fault.limit,
           " pages");
    case Kind::page:
      fail("value", "page ", fault.value, " of sequence ", fault.place, " is outside the pool of ", fault.limit,
           " pages");
    case Kind::queries:
      fail("value", "paged_attention: cu_q[", fault.place, "] is ", fault.value,
           "; expected ascending from 0 to at most ", fault.limit);
    case Kind::length:
      fail("value", "lengths[", fault.place, "] is ", fault.value,
           "; expected at least the sequence's rows here and at most the ", fault.limit, " of its pages");
    case Kind::index:
      fail("value", "index ", fault.value, " at position ", fault.place, " is outside [0, ", fault.limit, ")");
    case Kind::experts:
      fail("value", "first[", fault.place, "] is ", fault.value, "; expected ascending from 0 to at most the ",
           fault.limit, " rows");
    case Kind::trained:
      fail("value", "lm_head_loss: ", fault.value, " rows have a target, and at most ", fault.limit,
           " were expected: where targets were changed, say how many are trained, or leave that out");
    default:
      fail("value", "document boundary ", fault.place, " is ", fault.value, "; expected ascending from 0 to at most ",
           fault.limit);
  }
}

}  // namespace qeng
