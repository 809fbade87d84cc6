// Weights of 1, 2 or 4 bits with float or 8-bit activations, in one layout: blocks of 16 outputs, and for each block
// words of 32 bits side by side, one an output: (blocks, words, 16). A word holds the codes of 32 / bits inputs.
#pragma once
#include "infer_common.h"

namespace askew {

constexpr int OUT = 16;  // outputs in a block

// The end of a layer: y = max(scale sum + bias, floor); floor is -inf without ReLU, 0 with it. NaN stays NaN.
struct Affine {
    const float *scale, *bias;
    float floor;
    ASKEW_INLINE float operator()(i64 output, float sum) const {
        const float y = scale[output] * sum + bias[output];
        return y < floor ? floor : y;
    }
};

}  // namespace askew
