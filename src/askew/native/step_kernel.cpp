// One optimizer step on a span of one parameter: direction -> SGD or Adam -> retract, each array read and written once.
//
// Everything happens in one loop over registers; blocks of BLOCK elements keep what bfloat16, scales and tables need in
// the first-level cache, float32 arrays are used where they lie. The formulas are those of askew/core (shape, skew,
// level_first, arrive, snap), so that both forms decide alike, to rounding. Level-first is written as clamps: with d the
// way to the level, a captured coordinate's gradient is held at or beyond -alpha d, its weight on this side of the level.
//
// This file is compiled once per instruction set (ISA). It uses no library code, which would be shared between them.
#include <math.h>
#include <string.h>

#include "step.h"

#ifndef ISA
#define ISA base
#endif
#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#define LOOP _Pragma("GCC ivdep") for (int i = 0; i < n; ++i)

namespace {

constexpr int BLOCK = 512;

#ifdef __FMA__
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
inline float fused(float a, float b, float c) { return a * b + c; }
#endif

inline float from_bf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

inline uint16_t to_bf16(float x) {  // to the nearest, ties to even; NaN stays NaN
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return x != x ? (uint16_t)0x7fc0 : (uint16_t)rounded;
}

enum Update { PLAIN_SGD, MOMENTUM, ADAPTIVE };

struct Around {  // the neighbouring levels of q: a <= q < b (the outermost pair beyond the range), and their middle
  float a, b, middle;
};

template <int GRID>
inline Around around(const Rule& r, float q, const int32_t* at, int i) {
  if (GRID == PAIR) return {r.levels[0], r.levels[1], r.middles[0]};
  if (GRID == TABLE) return {r.levels[at[i]], r.levels[at[i] + 1], r.middles[at[i]]};
  float top = (float)(r.count - 2), k = floorf((q - r.levels[0]) * r.inverse_gap);
  k = k > 0 ? k : 0;  // NaN too
  k = k < top ? k : top;
  float a = r.levels[0] + k * r.gap;
  a = (q < a) & (k > 0) ? a - r.gap : a;  // the difference above may have been rounded up
  float b = a + r.gap;
  return {a, b, a + 0.5f * r.gap};
}

// TABLE: how many inner levels lie left of each q
void search(const Rule& r, int n, const float* __restrict w, const float* __restrict s, int32_t* __restrict at) {
  float q[BLOCK];
  LOOP q[i] = s ? w[i] / s[i] : w[i];
  LOOP at[i] = 0;
  for (int k = 1; k < r.count - 1; ++k) {
    float level = r.levels[k];
    LOOP at[i] += q[i] >= level;
  }
}

struct Way {  // what the base optimizer takes for a gradient, and where the step may end
  float d, lo, hi;
};

// The skewed direction of the paper (core.direction.skew), negated.
template <int GRID, bool SCALED>
inline float interval(const Rule& r, float x, float u, float s, const int32_t* at, int i) {
  float q = SCALED ? x / s : x;
  Around c = around<GRID>(r, q, at, i);
  float left = q - c.a, right = q - c.b, product = left * right;
  float beyond = q < r.levels[0] ? left : right;
  bool outside = product > 0;
  float phi = outside ? beyond * beyond : product * product;
  float slope = 2 * (outside ? beyond : product * (left + right));
  float psi = r.value - phi, floor = -r.alpha * psi;
  bool free = (psi > 0) | (slope * u >= (SCALED ? floor * s : floor));
  float pull = floor / -slope;
  pull = pull < -r.clip ? -r.clip : pull;
  pull = pull > r.clip ? r.clip : pull;
  pull = slope == 0 ? r.clip : pull;
  return free ? u : -(SCALED ? pull * s : pull);
}

inline float stored(float x, uint32_t half) {  // as bfloat16 would keep it if half is 1; all of it if half is 0
  uint32_t bits;
  memcpy(&bits, &x, 4);
  bits = (bits + half * 0x7fff + ((bits >> 16) & half)) & (half ? 0xffff0000u : 0xffffffffu);
  memcpy(&x, &bits, 4);
  return x;
}

// The level-first direction (core.direction.level_first), negated, and its arrival (core.direction.arrive).
// inward: how far q lies inside its pair's nearer end, below 0 beyond the range, where everybody is captured.
// limit: the capture radius; infinite at 1, where everybody is captured, minus infinity at 0, where nobody is.
template <int GRID, bool SCALED>
inline Way level_first(const Rule& r, float x, float u, float s, float limit, uint32_t half, Way hull,
                       const int32_t* at, int i) {
  float q = SCALED ? x / s : x;
  Around c = around<GRID>(r, q, at, i);
  float level = q >= c.middle ? c.b : c.a, target = SCALED ? stored(level * s, half) : level;
  if (SCALED) q = x == target ? level : q;
  float left = q - c.a, right = c.b - q, inward = left < right ? left : right;
  bool captured = inward <= limit * (GRID == TABLE ? (c.b - c.a) * 0.5f : 0.5f * r.gap);
  float distance = level - q, pull = -r.alpha * distance;
  if (SCALED) pull *= s;
  bool below = captured & (distance >= 0), above = captured & (distance <= 0);
  float lesser = u <= pull ? u : pull, d = below ? lesser : u, greater = d >= pull ? d : pull;
  d = above ? greater : d;
  return {d, above ? target : hull.lo, below ? target : hull.hi};
}

inline float limit_of(const Rule& r) { return r.value > 0 ? (r.value >= 1 ? INFINITY : r.value) : -INFINITY; }

inline float bounded(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}

// One block: w, m, v in place. s, at: the scale and (TABLE) the left neighbour's index of each element.
template <int MODE, int GRID, bool SCALED, int UPDATE>
void sweep(const Rule& rule, const Job& job, int n, float* __restrict w, const float* __restrict g,
           float* __restrict m, float* __restrict v, const float* __restrict s, const int32_t* __restrict at) {
  const Rule r = rule;
  const float low = r.clamp ? r.levels[0] : -INFINITY, high = r.clamp ? r.levels[r.count - 1] : INFINITY;
  const float limit = limit_of(r);
  const uint32_t half = job.w_type == BF16;
  const bool small = r.rest1 < 0.5f, fresh = job.fresh;
  const float part = small ? r.rest1 : -r.beta1, step = job.step, over_root = job.over_root;
  LOOP {
    float x = w[i], u = g[i], unit = SCALED ? s[i] : 1.0f;
    Way way = {u, SCALED ? low * unit : low, SCALED ? high * unit : high};
    if (MODE == INTERVAL) way.d = interval<GRID, SCALED>(r, x, u, unit, at, i);
    if (MODE == LEVEL_FIRST) way = level_first<GRID, SCALED>(r, x, u, unit, limit, half, way, at, i);
    float d = fused(r.decay, x, way.d);
    if (UPDATE == ADAPTIVE) {
      float first = fused(part, d - m[i], small ? m[i] : d);
      float second = fused(r.rest2 * d, d, v[i] * r.beta2);
      m[i] = first;
      v[i] = second;
      x = x * r.keep + step * first / fused(sqrtf(second), over_root, r.epsilon);
    } else {
      if (UPDATE == MOMENTUM) {
        float buffer = fresh ? d : fused(r.damped, d, m[i] * r.momentum);
        m[i] = buffer;
        d = r.nesterov ? fused(r.momentum, buffer, d) : buffer;
      }
      x = fused(r.rate, d, x);
    }
    w[i] = bounded(x, way.lo, way.hi);
  }
}

template <int GRID>
void nearest(const Rule& rule, int n, const float* __restrict w, const float* __restrict s,
             const int32_t* __restrict at, float* __restrict out) {
  const Rule r = rule;
  LOOP {
    float unit = s ? s[i] : 1.0f, q = w[i] / unit;
    Around c = around<GRID>(r, q, at, i);
    out[i] = (q >= c.middle ? c.b : c.a) * unit;
  }
}

// What the network computes with while capture is reversible (core.direction.shown); limit as in level_first.
template <int GRID>
void shown(const Rule& rule, int n, const float* __restrict w, const float* __restrict s,
           const int32_t* __restrict at, float* __restrict out) {
  const Rule r = rule;
  const float limit = limit_of(r);
  LOOP {
    float unit = s ? s[i] : 1.0f, q = w[i] / unit;
    Around c = around<GRID>(r, q, at, i);
    float left = q - c.a, right = c.b - q, inward = left < right ? left : right;
    bool captured = inward <= limit * (c.b - c.a) * 0.5f;
    out[i] = captured ? (q >= c.middle ? c.b : c.a) * unit : w[i];
  }
}

// -- one block --------------------------------------------------------------------------------------------------------

struct Room {  // everything between the stages, in the first-level cache
  float w[BLOCK], g[BLOCK], m[BLOCK], v[BLOCK], s[BLOCK], out[BLOCK];
  int32_t at[BLOCK];
};

float* reach(void* base, int type, int64_t start, int n, float* room, bool load) {
  if (!base) return nullptr;
  if (type == F32) return (float*)base + start;
  const uint16_t* x = (const uint16_t*)base + start;
  if (load) LOOP room[i] = from_bf16(x[i]);
  return room;
}

void put(void* base, int type, int64_t start, int n, const float* x) {
  if (type == F32) {
    if (x != (float*)base + start) memcpy((float*)base + start, x, n * sizeof(float));
    return;
  }
  uint16_t* to = (uint16_t*)base + start;
  LOOP to[i] = to_bf16(x[i]);
}

void scales(const Job& job, int64_t start, int n, float* s) {
  int64_t k = start / job.inner % job.channels, left = job.inner - start % job.inner;
  for (int done = 0; done < n;) {
    int run = left < n - done ? (int)left : n - done;
    for (int i = 0; i < run; ++i) s[done + i] = job.scale[k];
    done += run;
    left = job.inner;
    k = k + 1 == job.channels ? 0 : k + 1;
  }
}

using Sweep = void (*)(const Rule&, const Job&, int, float*, const float*, float*, float*, const float*, const int32_t*);

template <int MODE, int GRID, bool SCALED>
Sweep by_update(int update) {
  if (update == ADAPTIVE) return sweep<MODE, GRID, SCALED, ADAPTIVE>;
  return update == MOMENTUM ? sweep<MODE, GRID, SCALED, MOMENTUM> : sweep<MODE, GRID, SCALED, PLAIN_SGD>;
}

template <int MODE>
Sweep by_grid(int grid, bool scaled, int update) {
  if (MODE == PLAIN || grid == PAIR)
    return scaled ? by_update<MODE, PAIR, true>(update) : by_update<MODE, PAIR, false>(update);
  if (grid == EVEN) return scaled ? by_update<MODE, EVEN, true>(update) : by_update<MODE, EVEN, false>(update);
  return scaled ? by_update<MODE, TABLE, true>(update) : by_update<MODE, TABLE, false>(update);
}

Sweep sweep_for(const Job& job, const Rule& r) {
  int update = r.base == ADAM ? ADAPTIVE : job.m ? MOMENTUM : PLAIN_SGD;
  if (r.mode == INTERVAL) return by_grid<INTERVAL>(r.grid, job.scale, update);
  if (r.mode == LEVEL_FIRST) return by_grid<LEVEL_FIRST>(r.grid, job.scale, update);
  return by_grid<PLAIN>(r.grid, job.scale, update);
}

void to_levels(const Rule& r, int n, const float* w, const float* s, Room& o, float* out) {
  if (r.grid == TABLE) search(r, n, w, s, o.at);
  (r.grid == PAIR ? nearest<PAIR> : r.grid == EVEN ? nearest<EVEN> : nearest<TABLE>)(r, n, w, s, o.at, out);
}

// What the network computes with, to where its weights lie.
void show(const Job& job, const Rule& r, int64_t start, int n, const float* w, const float* s, Room& o) {
  if (r.forward == SHOWN) {
    if (r.grid == TABLE) search(r, n, w, s, o.at);
    (r.grid == PAIR ? shown<PAIR> : r.grid == EVEN ? shown<EVEN> : shown<TABLE>)(r, n, w, s, o.at, o.out);
  } else if (r.forward == NEAREST) {
    to_levels(r, n, w, s, o, o.out);
  }
  put(job.out, job.out_type, start, n, r.forward == COPY ? w : o.out);
}

void block(Sweep run, const Job& job, const Rule& r, int64_t start, int n, Room& o) {
  float* w = reach(job.w, job.w_type, start, n, o.w, true);
  const float* g = reach((void*)job.g, job.g_type, start, n, o.g, true);
  float* m = reach(job.m, job.m_type, start, n, o.m, !job.fresh);
  float* v = reach(job.v, job.m_type, start, n, o.v, true);
  const float* s = job.scale ? o.s : nullptr;
  if (s) scales(job, start, n, o.s);
  if (r.mode != PLAIN && r.grid == TABLE) search(r, n, w, s, o.at);
  run(r, job, n, w, g, m, v, s, o.at);
  if (r.snap) {
    to_levels(r, n, w, s, o, o.out);
    memcpy(w, o.out, n * sizeof(float));
  }
  if (job.w_type == BF16) put(job.w, BF16, start, n, w);
  if (m && job.m_type == BF16) put(job.m, BF16, start, n, m);
  if (v && job.m_type == BF16) put(job.v, BF16, start, n, v);
  if (!job.out) return;
  if (job.w_type == BF16) LOOP w[i] = stored(w[i], 1);  // what the network computes with is made of what is kept
  show(job, r, start, n, w, s, o);
}

}  // namespace

extern "C" void NAME(askew_step_span_, ISA)(const Job* job, const Rule* rules, int64_t start, int64_t end) {
  Room room;
  Sweep run = sweep_for(*job, rules[job->rule]);
  for (; start < end; start += BLOCK)
    block(run, *job, rules[job->rule], start, (int)(end - start < BLOCK ? end - start : BLOCK), room);
}

// The network's weights alone, of weights that stay as they are.
extern "C" void NAME(askew_show_span_, ISA)(const Job* job, const Rule* rules, int64_t start, int64_t end) {
  Room o;
  for (; start < end; start += BLOCK) {
    int n = (int)(end - start < BLOCK ? end - start : BLOCK);
    const float* w = reach(job->w, job->w_type, start, n, o.w, true);
    if (job->scale) scales(*job, start, n, o.s);
    show(*job, rules[job->rule], start, n, w, job->scale ? o.s : nullptr, o);
  }
}

// Is there a NaN or an infinity among these numbers? Their exponent is all ones, so without the sign they are largest.
// Four places of the span are read side by side: one stream alone does not fill the memory's queue.
template <typename Bits>
static bool bad(const Bits* x, int64_t n, Bits sign, Bits infinite) {
  constexpr int PART = 64;
  Bits most[PART] = {};
  int64_t quarter = n / 4 / PART * PART;
  for (int64_t i = 0; i < quarter; i += PART)
    for (int k = 0; k < 4; ++k)
      for (int j = 0; j < PART; ++j) {
        Bits size = x[k * quarter + i + j] & (Bits)~sign;
        most[j] = size > most[j] ? size : most[j];
      }
  for (int64_t i = 4 * quarter; i < n; ++i) most[0] = most[0] > (Bits)(x[i] & ~sign) ? most[0] : (Bits)(x[i] & ~sign);
  Bits all = 0;
  for (int j = 0; j < PART; ++j) all = most[j] > all ? most[j] : all;
  return all >= infinite;
}

extern "C" int NAME(askew_bad_span_, ISA)(const void* x, int type, int64_t start, int64_t end) {
  if (type == F32) return bad<uint32_t>((const uint32_t*)x + start, end - start, 0x80000000u, 0x7f800000u);
  return bad<uint16_t>((const uint16_t*)x + start, end - start, 0x8000, 0x7f80);
}
