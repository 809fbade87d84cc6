// One-bit weights, one-bit activations: dot = sum over the taps inside the image of C - 2 popcount(x xor w).
//
// Activations: images of words of 64 bits, bit 1 for +1, read where they lie as pairs of 32 bits. Weights: in tiles of 64
// outputs, (words of 32 bits, 4 blocks, 16 outputs), the last tile with as many blocks as it needs; a tile is read from
// start to end. Bits beyond the last channel are 0 on both sides.
// Zero padding is not a value of {-1, +1}: taps outside the image are left out. Output positions with the same taps
// inside form a class and share a walk over the words; up to 4 positions of a class go through the weights together.
#include "infer_w1a1_tiles.h"

#include <vector>

ASKEW_API void askew_sign_pack(const float*, std::int64_t, std::int64_t, void*, int);

namespace askew {
namespace {

constexpr i64 BLOCK = 128;  // output positions that share one pass over the weights

// Along one axis: which taps [from, to) lie inside for each kind of position, and where the kind's positions end; the
// kind of each position, and where its first tap inside lies.
struct Axis {
    std::vector<i64> from, to, end, first;
    std::vector<i32> kind;

    Axis(i64 size, i64 kernel, i64 stride, i64 pad, i64 dilation, i64 out) : first(out), kind(out) {
        for (i64 p = 0; p < out; ++p) {
            const i64 origin = p * stride - pad;
            i64 a = origin >= 0 ? 0 : ceil_div(-origin, dilation);
            i64 b = origin >= size ? 0 : least<i64>(kernel, (size - 1 - origin) / dilation + 1);
            if (a >= b) a = b = 0;
            if (from.empty() || from.back() != a || to.back() != b) add(a, b);
            end.back() = p + 1;
            kind[p] = static_cast<i32>(from.size()) - 1;
            first[p] = a < b ? origin + a * dilation : 0;
        }
    }
    void add(i64 a, i64 b) {
        from.push_back(a);
        to.push_back(b);
        end.push_back(0);
    }
    i64 kinds() const { return static_cast<i64>(from.size()); }
};

// The walks of all classes, and groups of output positions.
struct Plan {
    const Geometry& g;
    Axis vertical, horizontal;
    std::vector<Walk> walks;

    Plan(const Geometry& geometry, i64 channels)
        : g(geometry),
          vertical(g.height, g.kernel_h, g.stride_h, g.pad_h, g.dilation_h, g.out_h),
          horizontal(g.width, g.kernel_w, g.stride_w, g.pad_w, g.dilation_w, g.out_w) {
        for (i64 i = 0; i < vertical.kinds(); ++i)
            for (i64 j = 0; j < horizontal.kinds(); ++j) walks.push_back(walk(i, j, channels));
    }

    Walk walk(i64 i, i64 j, i64 channels) const {
        const i64 c = 2 * g.channels, high = vertical.to[i] - vertical.from[i];
        const i64 wide = horizontal.to[j] - horizontal.from[j];
        const bool together = g.dilation_w == 1;  // taps side by side lie side by side in the image too
        Walk w{high, together ? 1 : wide, together ? wide * c : c, 0, 0, 0, 0, 0, 0};
        w.start = (vertical.from[i] * g.kernel_w + horizontal.from[j]) * c;
        w.x_h = g.dilation_h * g.width * c;
        w.x_w = g.dilation_w * c;
        w.w_h = g.kernel_w * c;
        w.w_w = c;
        w.valid = static_cast<i32>(high * wide * channels);
        return w;
    }

    // The positions begin .. begin + count in groups; `open` is scratch for the groups that are not full yet.
    void group(const u32* x, i64 begin, i64 count, std::vector<Group>& open, std::vector<Group>& groups) const {
        open.resize(walks.size());
        for (std::size_t i = 0; i < open.size(); ++i) open[i].walk = static_cast<i32>(i), open[i].size = 0;
        groups.clear();
        i64 column = begin % g.out_w, line = begin / g.out_w % g.out_h, image = begin / (g.out_w * g.out_h);
        for (i64 p = begin; p < begin + count;) {
            const i64 kind = horizontal.kind[column];
            const i64 stop = least(horizontal.end[kind], column + begin + count - p);  // columns of one kind
            Group& o = open[vertical.kind[line] * horizontal.kinds() + kind];
            i64 at = ((image * g.height + vertical.first[line]) * g.width + horizontal.first[column]) * 2 * g.channels;
            for (; column < stop; ++column, ++p, at += 2 * g.stride_w * g.channels) {
                o.x[o.size] = x + at;
                o.row[o.size] = p;
                if (++o.size < ROWS) continue;
                groups.push_back(o);
                o.size = 0;
            }
            if (column < g.out_w) continue;
            column = 0;
            if (++line < g.out_h) continue;
            line = 0;
            ++image;
        }
        for (const Group& o : open)
            if (o.size > 0) groups.push_back(o);
    }
};

// All but where the input and the output lie; ship/signs.py fills it. Geometry's channels are words of 64 bits, `channels`
// the signs that a tap multiplies.
struct Job {
    const Geometry* geometry;
    i64 channels;
    const u32* weights;
    i64 outputs;
    const i32* threshold;
    const u64* flip;
    const float *scale, *bias;
    i64 ldo;
    float floor;
    i32 mode;
    i64 threads;
};

}  // namespace
}  // namespace askew

// out = conv(sign bits x, sign bits w); see Ending for what becomes of the dot products.
ASKEW_API void askew_w1a1(const std::uint32_t* x, const void* prepared, void* out) {
    using namespace askew;
    const Job& job = *static_cast<const Job*>(prepared);
    const Geometry& g = *job.geometry;
    const Affine end{job.scale, job.bias, job.floor};
    const Ending e{static_cast<Mode>(job.mode), job.outputs, end, job.threshold, job.flip, out, job.ldo};
    const Plan plan(g, job.channels);
    const i64 rows = g.rows(), words = 2 * g.depth(), row_blocks = ceil_div(rows, BLOCK);
    const Tiles& kernels = tiles_in_use();
    const i64 blocks = ceil_div(job.outputs, OUT), tiles = ceil_div(blocks, BLOCKS);
    const i64 splits = row_blocks >= job.threads ? 1 : least<i64>(tiles, ceil_div(job.threads, row_blocks));
    parallel_for(row_blocks * splits, static_cast<int>(job.threads), [&](i64 item) {
        thread_local std::vector<Group> open, groups;
        const i64 first = item / splits * BLOCK, part = item % splits;
        plan.group(x, first, least(BLOCK, rows - first), open, groups);
        for (i64 t = tiles * part / splits; t < tiles * (part + 1) / splits; ++t) {
            const i64 here = least<i64>(BLOCKS, blocks - t * BLOCKS);
            for (const Group& group : groups)
                kernels[group.size - 1][here - 1](group, plan.walks[group.walk], job.weights + t * words * TILE, e, t);
        }
    });
}

// The same from floats: their signs are packed first, into memory that stays from call to call.
ASKEW_API void askew_signs_w1a1(const float* x, const void* prepared, void* out) {
    using namespace askew;
    const Job& job = *static_cast<const Job*>(prepared);
    const Geometry& g = *job.geometry;
    const i64 pixels = g.batch * g.height * g.width;
    thread_local std::vector<u32> bits;
    bits.resize(static_cast<std::size_t>(2 * pixels * g.channels));
    askew_sign_pack(x, pixels, job.channels, bits.data(), static_cast<int>(job.threads));
    askew_w1a1(bits.data(), prepared, out);
}
