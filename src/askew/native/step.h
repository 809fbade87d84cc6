// The data of one optimizer step, as Python's ctypes side (askew/optim/fused_cpu.py) lays it out. Plain C types only.
#pragma once
#include <stdint.h>

enum { VERSION = 2 };  // of what follows and of the calls in step.cpp

enum Mode { PLAIN = 0, INTERVAL = 1, LEVEL_FIRST = 2 };  // which direction: the gradient, eq. skew, level-first
enum Grid { PAIR = 0, EVEN = 1, TABLE = 2 };             // two levels, even spacing, any sorted list
enum Base { SGD = 0, ADAM = 1 };
enum Type { F32 = 0, BF16 = 1 };
enum Forward { COPY = 0, NEAREST = 1, SHOWN = 2 };  // w, its level, or its level if it is captured

// One parameter group: the levels and the scalars of this step.
struct Rule {
  const float* levels;   // c_1 < ... < c_K
  const float* middles;  // their midpoints
  int32_t mode, grid, base, count;
  int32_t clamp;    // keep w in s [c_1, c_K]
  int32_t snap;     // end on the nearest level (the run's last step)
  int32_t forward;  // what out shows
  int32_t nesterov;
  float gap, inverse_gap;         // PAIR and EVEN: the spacing, a power of two, and 1 / spacing
  float value, alpha, clip;       // epsilon or capture radius, alpha, M; in level units
  float keep, decay;              // w *= keep (decoupled decay), g += decay * w
  float beta1, beta2, rest1, rest2, epsilon;  // Adam; rest = 1 - beta
  float momentum, damped, rate;   // SGD; damped = 1 - dampening, rate = -lr
  double lr, exact1, exact2;      // lr, beta1, beta2 for the bias corrections
};

// One parameter: its arrays, all in the same memory order.
struct Job {
  void* w;             // the weights that are optimised
  const void* g;       // gradient
  void* m;             // exp_avg, or the momentum buffer; may be null for SGD
  void* v;             // exp_avg_sq; null for SGD
  void* out;           // where the network's weights lie if not in w; may be null
  void* count;         // Adam: torch's step count t, raised by one; float, or double if count_type is 1
  const float* scale;  // null: 1; else one number, or one per channel
  int64_t n, inner, channels;  // channel of element i: (i / inner) % channels
  int32_t rule, w_type, g_type, m_type, out_type, count_type;
  int32_t fresh;  // the momentum buffer starts as the gradient
  float step, over_root;  // Adam, made here: -lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t)
};
