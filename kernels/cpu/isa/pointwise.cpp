// Programs of elementwise and row functions: a function for each instruction, which ends in a jump to the next one's.
#include "kernels/cpu/isa/pointwise.h"

#include "kernels/cpu/isa/simd/functions.h"

namespace qeng::isa::QENG_ISA {
namespace {

Vec with_nan(Vec a, Vec chosen) { return choose(is_nan(a), a, chosen); }  // where a is none, `chosen`

// Functions that expressions are mostly made of take operands of any kind; the others cells, slots and f32 streams.
#define QENG_FUNCTION(Name, ...) \
  struct Name {                  \
    static Vec of(__VA_ARGS__);  \
  };                             \
  inline Vec Name::of(__VA_ARGS__)
QENG_FUNCTION(Add, Vec a, Vec b) { return a + b; }
QENG_FUNCTION(Sub, Vec a, Vec b) { return a - b; }
QENG_FUNCTION(Mul, Vec a, Vec b) { return a * b; }
QENG_FUNCTION(Div, Vec a, Vec b) { return a / b; }
QENG_FUNCTION(Pow, Vec a, Vec b) { return power(a, b); }
QENG_FUNCTION(Min, Vec a, Vec b) { return with_nan(a, min(a, b)); }
QENG_FUNCTION(Max, Vec a, Vec b) { return with_nan(a, max(a, b)); }
QENG_FUNCTION(Less, Vec a, Vec b) { return less(a, b); }
QENG_FUNCTION(LessEqual, Vec a, Vec b) { return less_equal(a, b); }
QENG_FUNCTION(Equal, Vec a, Vec b) { return equal(a, b); }
QENG_FUNCTION(NotEqual, Vec a, Vec b) { return splat(1.0f) - equal(a, b); }
QENG_FUNCTION(Neg, Vec a) { return flip_sign(a, splat(-0.0f)); }
QENG_FUNCTION(Abs, Vec a) { return absolute(a); }
QENG_FUNCTION(Sign, Vec a) { return with_nan(a, less(splat(0.0f), a) - less(a, splat(0.0f))); }
QENG_FUNCTION(Exp, Vec a) { return exp(a); }
QENG_FUNCTION(Expm1, Vec a) { return expm1(a); }
QENG_FUNCTION(Log, Vec a) { return log(a); }
QENG_FUNCTION(Log1p, Vec a) { return log1p(a); }
QENG_FUNCTION(Sqrt, Vec a) { return sqrt(a); }
QENG_FUNCTION(Rsqrt, Vec a) { return splat(1.0f) / sqrt(a); }
QENG_FUNCTION(Sin, Vec a) { return sin_or_cos<0>(a); }
QENG_FUNCTION(Cos, Vec a) { return sin_or_cos<1>(a); }
QENG_FUNCTION(Tanh, Vec a) { return tanh(a); }
QENG_FUNCTION(Erf, Vec a) { return erf(a); }
QENG_FUNCTION(Sigmoid, Vec a) { return sigmoid(a); }
#undef QENG_FUNCTION

template <class F>
struct Turned {
  static Vec of(Vec a, Vec b) { return F::of(b, a); }
};

template <class T>
Vec load_as(const T* p) {
  float lanes[kWidth];
  for (int i = 0; i < kWidth; ++i) lanes[i] = static_cast<float>(p[i]);
  return load(lanes);
}
inline Vec load_as(const float* p) { return load(p); }
inline Vec load_as(const bf16* p) { return load(p); }
inline Vec load_as(const f16* p) { return load(p); }
template <class T>
void store_as(T* p, Vec v) {
  store(p, v);
}
inline void store_as(uint8_t* p, Vec v) {
  float lanes[kWidth];
  store(lanes, v);
  for (int i = 0; i < kWidth; ++i) p[i] = lanes[i] != 0;
}

template <class T>
void store_pair(T* p, Vec a, Vec b) {
  store_as(p, a), store_as(p + kWidth, b);
}
inline void store_pair(bf16* p, Vec a, Vec b) { store_two(p, a, b); }

// Operands: at(i, accumulator) is vector i of one.
struct Itself {
  Itself(const Instruction&, const Frame&) {}
  Vec at(int, Vec accumulator) const { return accumulator; }
};
struct Cell {
  Cell(const Instruction& in, const Frame& frame) : value(load(frame.memory + in.at)) {}
  Vec at(int, Vec) const { return value; }
  Vec value;
};
struct Slot {
  Slot(const Instruction& in, const Frame& frame) : p(frame.memory + in.at) {}
  Vec at(int i, Vec) const { return load(p + i * kWidth); }
  const float* p;
};
template <class T>
T* stream(int index, const Frame& frame) {
  return reinterpret_cast<T*>(frame.stream[index]) + frame.column;
}
template <class T>
struct Stream {
  Stream(const Instruction& in, const Frame& frame) : p(stream<T>(in.at, frame)) {}
  Vec at(int i, Vec) const { return load_as(p + i * kWidth); }
  const T* p;
};
// One of those that lie in memory as f32.
struct Any {
  Any(const Instruction& in, const Frame& frame) : Any(in.kind, in.at, frame) {}
  Any(Kind kind, int at, const Frame& frame)
      : p(kind == Kind::f32 ? stream<const float>(at, frame) : frame.memory + at),
        step(kind == Kind::cell ? 0 : kWidth) {}
  Vec at(int i, Vec) const { return load(p + i * step); }
  const float* p;
  int64_t step;
};

// f of a value of the operand's class.
template <class F>
auto with_operand(Kind kind, F f) {
  switch (kind) {
    case Kind::cell: return f(static_cast<Cell*>(nullptr));
    case Kind::slot: return f(static_cast<Slot*>(nullptr));
    case Kind::f32: return f(static_cast<Stream<float>*>(nullptr));
    case Kind::bf16: return f(static_cast<Stream<bf16>*>(nullptr));
    default: return f(static_cast<Itself*>(nullptr));
  }
}

// Vectors: as many as a function takes in registers.
#if defined(QENG_ISA_neon)
constexpr int kBlock = 4;  // of two registers
#else
constexpr int kBlock = 8;
#endif

constexpr float kLanes[kCell] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

constexpr float neutral(Fn fn) { return fn == Fn::row_sum ? 0.0f : fn == Fn::row_max ? -kInfinity : kInfinity; }
template <Fn fn>
Vec joined(Vec a, Vec b) {  // of extremes: b where either is NaN
  return fn == Fn::row_sum ? a + b : fn == Fn::row_max ? max(a, b) : min(a, b);
}
template <Fn fn, int count>
Vec joined_all(const Vec* all) {
  if constexpr (count == 1)
    return all[0];
  else
    return joined<fn>(joined_all<fn, count / 2>(all), joined_all<fn, count / 2>(all + count / 2));
}
template <int count>
Mask any_nan(const Vec* all) {
  if constexpr (count == 1)
    return is_nan(all[0]);
  else
    return either(any_nan<count / 2>(all), any_nan<count / 2>(all + count / 2));
}
// What vectors make together; of extremes NaN where there is one.
template <Fn fn, int count>
Vec joined_with_nan(const Vec* all) {
  const Vec found = joined_all<fn, count>(all);
  return fn == Fn::row_sum ? found : choose(any_nan<count>(all), splat(__builtin_nanf("")), found);
}

// The instructions for a block of vectors number I.
template <int... I>
struct Machine {
  template <int>
  using V = Vec;
  using Run = void (*)(const Instruction*, Frame&, V<I>...);
  static constexpr int kVectors = sizeof...(I);

  [[gnu::always_inline]] static void next(const Instruction* in, Frame& frame, V<I>... a) {
    reinterpret_cast<Run>(in[1].run[kVectors == 1])(in + 1, frame, a...);
  }
  static void end(const Instruction*, Frame&, V<I>...) {}
  template <class B>
  static void load_operand(const Instruction* in, Frame& frame, V<I>... a) {
    const B b(*in, frame);
    return next(in, frame, b.at(I, a)...);
  }
  template <class F>
  static void unary(const Instruction* in, Frame& frame, V<I>... a) {
    return next(in, frame, F::of(a)...);
  }
  template <class F, class B>
  static void binary(const Instruction* in, Frame& frame, V<I>... a) {
    const B b(*in, frame);
    return next(in, frame, F::of(a, b.at(I, a))...);
  }
  static void where(const Instruction* in, Frame& frame, V<I>... a) {
    const Any b(in->kind, in->at, frame), c(in->other_kind, in->other, frame);
    return next(in, frame, select(a, b.at(I, a), c.at(I, a))...);
  }
  template <Fn fn>
  static void reduce(const Instruction* in, Frame& frame, V<I>... a) {
    if (frame.count < kVectors * kWidth) return reduce_rest<fn>(in, frame, a...);
    join<fn>(*in, frame, a...);
    return next(in, frame, a...);
  }
  // Leaves out columns that there are not.
  template <Fn fn>
  [[gnu::noinline]] static void reduce_rest(const Instruction* in, Frame& frame, V<I>... a) {
    const Vec count = splat(static_cast<float>(frame.count)), lanes = load(kLanes), none = splat(neutral(fn));
    join<fn>(*in, frame, choose(below(lanes + splat(static_cast<float>(I * kWidth)), count), a, none)...);
    return next(in, frame, a...);
  }
  // Blocks take turns at kBlock parts, for one part would have to wait for the block before.
  template <Fn fn>
  [[gnu::always_inline]] static void join(const Instruction& in, Frame& frame, V<I>... a) {
    const Vec all[] = {a...};
    float* part = frame.memory + in.at + static_cast<uint64_t>(frame.column) / (kVectors * kWidth) % kBlock * kWidth;
    const Vec found = joined_with_nan<fn, kVectors>(all), before = load(part);
    store(part, fn == Fn::row_sum ? before + found : choose(is_nan(found), found, joined<fn>(found, before)));
  }
  static void keep_slot(const Instruction* in, Frame& frame, V<I>... a) {
    float* to = frame.memory + in->at;
    (store(to + I * kWidth, a), ...);
    return next(in, frame, a...);
  }
  template <class T>
  static void put(const Instruction* in, Frame& frame, V<I>... a) {
    T* to = stream<T>(in->at, frame);
    if constexpr (kVectors == 1) {
      (store_as(to, a), ...);
    } else {
      const Vec all[] = {a...};
      for (int i = 0; i < kVectors; i += 2) store_pair(to + i * kWidth, all[i], all[i + 1]);
    }
    return next(in, frame, a...);
  }
  template <class T>
  static void put_past(const Instruction* in, Frame& frame, V<I>... a) {
    if (frame.count < kVectors * kWidth || kVectors == 1) return put<T>(in, frame, a...);
    T* to = stream<T>(in->at, frame);
    const Vec all[] = {a...};
    for (int i = 0; i + 1 < kVectors; i += 2) stream_two(to + i * kWidth, all[i], all[i + 1]);
    return next(in, frame, a...);
  }
  template <class T>
  static void add(const Instruction* in, Frame& frame, V<I>... a) {
    T* to = stream<T>(in->at, frame);
    (store_as(to + I * kWidth, load_as(to + I * kWidth) + a), ...);
    return next(in, frame, a...);
  }

  template <class F>
  static Run with_any(bool turned) {
    return turned ? &binary<Turned<F>, Any> : &binary<F, Any>;
  }
  template <class F>
  static Run with_each(const Instruction& in) {
    return with_operand(in.kind, []<class B>(B*) -> Run { return &binary<F, B>; });
  }

  static Run find(const Instruction& in) {
    const bool turned = in.action == Action::apply_from;
    switch (in.action) {
      case Action::end: return &end;
      case Action::load: return find_load(in.kind);
      case Action::keep: return in.kind == Kind::slot ? &keep_slot : &put<float>;
      case Action::reduce:
        return in.fn == Fn::row_sum   ? &reduce<Fn::row_sum>
               : in.fn == Fn::row_max ? &reduce<Fn::row_max>
                                      : &reduce<Fn::row_min>;
      case Action::put:
        return in.kind == Kind::f32    ? &put<float>
               : in.kind == Kind::bf16 ? &put<bf16>
               : in.kind == Kind::f16  ? &put<f16>
                                       : &put<uint8_t>;
      case Action::put_past: return in.kind == Kind::f32 ? &put_past<float> : &put_past<bf16>;
      case Action::add: return in.kind == Kind::f32 ? &add<float> : in.kind == Kind::bf16 ? &add<bf16> : &add<f16>;
      default: break;
    }
    switch (in.fn) {
      case Fn::neg: return &unary<Neg>;
      case Fn::abs: return &unary<Abs>;
      case Fn::sign: return &unary<Sign>;
      case Fn::exp: return &unary<Exp>;
      case Fn::expm1: return &unary<Expm1>;
      case Fn::log: return &unary<Log>;
      case Fn::log1p: return &unary<Log1p>;
      case Fn::sqrt: return &unary<Sqrt>;
      case Fn::rsqrt: return &unary<Rsqrt>;
      case Fn::sin: return &unary<Sin>;
      case Fn::cos: return &unary<Cos>;
      case Fn::tanh: return &unary<Tanh>;
      case Fn::erf: return &unary<Erf>;
      case Fn::sigmoid: return &unary<Sigmoid>;
      case Fn::add: return with_each<Add>(in);
      case Fn::sub: return turned ? with_each<Turned<Sub>>(in) : with_each<Sub>(in);
      case Fn::mul: return with_each<Mul>(in);
      case Fn::div: return turned ? with_each<Turned<Div>>(in) : with_each<Div>(in);
      case Fn::pow: return with_any<Pow>(turned);
      case Fn::min: return with_any<Min>(turned);
      case Fn::max: return with_any<Max>(turned);
      case Fn::less: return with_any<Less>(turned);
      case Fn::less_equal: return with_any<LessEqual>(turned);
      case Fn::equal: return with_any<Equal>(turned);
      case Fn::not_equal: return with_any<NotEqual>(turned);
      case Fn::where: return &where;
      default: return nullptr;
    }
  }
  static Run find_load(Kind kind) {
    switch (kind) {
      case Kind::f16: return &load_operand<Stream<f16>>;
      case Kind::i32: return &load_operand<Stream<int32_t>>;
      case Kind::i64: return &load_operand<Stream<int64_t>>;
      case Kind::u8: return &load_operand<Stream<uint8_t>>;
      default: return with_operand(kind, []<class B>(B*) -> Run { return &load_operand<B>; });
    }
  }
  static void run(const Instruction* program, Frame& frame) {
    const Vec nothing = splat(0.0f);
    reinterpret_cast<Run>(program->run[kVectors == 1])(program, frame, ((void)I, nothing)...);
  }
};
#if defined(QENG_ISA_neon)
using Block = Machine<0, 1, 2, 3>;
#else
using Block = Machine<0, 1, 2, 3, 4, 5, 6, 7>;
#endif
using Narrow = Machine<0>;

void link(Instruction& in) {
  in.run[0] = reinterpret_cast<void (*)()>(Block::find(in));
  in.run[1] = reinterpret_cast<void (*)()>(Narrow::find(in));
}

void pointwise(const Instruction* program, Frame& frame, int64_t begin, int64_t end) {
  frame.count = kBlock * kWidth;
  for (frame.column = begin; frame.column < end; frame.column += frame.count) {
    for (int i = 0; i < frame.aheads; ++i) {
      const Ahead& ahead = frame.ahead[i];
      const char *from = ahead.first + frame.column * ahead.size, *to = from + frame.count * ahead.size;
      for (; from < to; from += 64) __builtin_prefetch(from, 0, 2);
    }
    Block::run(program, frame);
  }
}

void pointwise_rest(const Instruction* program, Frame& frame, int64_t begin, int64_t end) {
  frame.column = begin, frame.count = end - begin;
  if (frame.count > 2 * kWidth) return Block::run(program, frame);
  for (; frame.column < end; frame.column += kWidth) {
    frame.count = end - frame.column;
    Narrow::run(program, frame);
  }
}

// A narrow block and the one after it have two parts, a block of its own one.
constexpr int kFew = 2;

void begin(Fn fn, float* parts, bool few) {
  for (int i = 0; i < (few ? kFew : kBlock); ++i) store(parts + i * kWidth, splat(neutral(fn)));
}

template <Fn fn, int count>
Vec total(const float* parts) {
  Vec all[count];
  for (int i = 0; i < count; ++i) all[i] = load(parts + i * kWidth);
  return joined_with_nan<fn, count>(all);
}
template <Fn fn>
Vec total(const float* parts, bool few) {
  return few ? total<fn, kFew>(parts) : total<fn, kBlock>(parts);
}
float total(Fn fn, const float* parts, bool few) {
  if (fn == Fn::row_sum) return sum(total<Fn::row_sum>(parts, few));
  const Vec all = fn == Fn::row_max ? total<Fn::row_max>(parts, few) : splat(0.0f) - total<Fn::row_min>(parts, few);
  if (any(is_nan(all))) return __builtin_nanf("");
  return fn == Fn::row_max ? largest(all) : 0.0f - largest(all);
}

void set(float* cell, float value) {
  for (int i = 0; i < kCell; i += kWidth) store(cell + i, splat(value));
}
void finish(Fn fn, const float* parts, bool few, float* cell) { set(cell, total(fn, parts, few)); }

template <Fn fn>
void rows(const float* from, float* to, int64_t rows, int64_t columns) {
  const Vec lanes = load(kLanes), none = splat(neutral(fn));
  for (int64_t r = 0; r < rows; ++r, from += columns, to += columns) {
    Vec all = none;
    Mask nan = below(none, none);
    for (int64_t i = 0; i < columns; i += kWidth) {
      const Vec there = choose(below(lanes, splat(static_cast<float>(columns - i))), load(from + i), none);
      nan = either(nan, is_nan(there)), all = joined<fn>(there, all);
    }
    const float found = fn == Fn::row_sum   ? sum(all)
                        : fn == Fn::row_max ? largest(all)
                                            : 0.0f - largest(splat(0.0f) - all);
    const Vec value = splat(fn != Fn::row_sum && any(nan) ? __builtin_nanf("") : found);
    for (int64_t i = 0; i < columns; i += kWidth) store(to + i, value);  // the next row writes over what is too much
  }
}
void rows(Fn fn, const float* from, float* to, int64_t count, int64_t columns) {
  if (fn == Fn::row_sum) return rows<Fn::row_sum>(from, to, count, columns);
  return fn == Fn::row_max ? rows<Fn::row_max>(from, to, count, columns) : rows<Fn::row_min>(from, to, count, columns);
}

}  // namespace

void fill_pointwise(Table& table) {
  table.pointwise_block = kBlock * kWidth;
  table.pointwise_link = link;
  table.pointwise = pointwise;
  table.pointwise_rest = pointwise_rest;
  table.pointwise_begin = begin;
  table.pointwise_total = total;
  table.pointwise_finish = finish;
  table.pointwise_rows = rows;
  table.pointwise_set = set;
}

}  // namespace qeng::isa::QENG_ISA
