// The transforms of Winograd's convolution F(4x4, 3x3) (Lavin and Gray, "Fast Algorithms for
// Convolutional Neural Networks", 2016): tiles of 4x4 outputs come from 6x6 inputs.
//
// Images are (N, C, H, W) with channels last, floats, and C a multiple of 8. Tiles are 36 slabs of
// (tiles, C); `slab` is the distance between two of them. Loops go over tiles, vectors over channels.

#include <cstdint>
#include <cstring>
#include <vector>

typedef float Lane __attribute__((vector_size(32), aligned(4)));
enum { LANE = 8, OUT = 4, IN = 6, SLABS = IN * IN };

// Each of the four matrices, applied to a line of a tile whose elements are `step` apart.

static inline void input_line(const Lane *d, int step, Lane *to, int by) {  // B^T d
    Lane d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step],
         d5 = d[5 * step];
    Lane even = d4 - 4.f * d2, odd = d3 - 4.f * d1, near = d4 - d2, far = 2.f * (d3 - d1);
    to[0] = 4.f * d0 - 5.f * d2 + d4;
    to[by] = even + odd;
    to[2 * by] = even - odd;
    to[3 * by] = near + far;
    to[4 * by] = near - far;
    to[5 * by] = 4.f * d1 - 5.f * d3 + d5;
}

static inline void input_line_back(const Lane *d, int step, Lane *to, int by) {  // B d
    Lane d0 = d[0], d5 = d[5 * step];
    Lane plus = d[step] + d[2 * step], minus = d[step] - d[2 * step];
    Lane plus2 = d[3 * step] + d[4 * step], minus2 = d[3 * step] - d[4 * step];
    to[0] = 4.f * d0;
    to[by] = 4.f * (d5 - minus) - 2.f * minus2;
    to[2 * by] = -5.f * d0 - 4.f * plus - plus2;
    to[3 * by] = minus + 2.f * minus2 - 5.f * d5;
    to[4 * by] = d0 + plus + plus2;
    to[5 * by] = d5;
}

static inline void output_line(const Lane *d, int step, Lane *to, int by) {  // A^T d
    Lane plus = d[step] + d[2 * step], minus = d[step] - d[2 * step];
    Lane plus2 = d[3 * step] + d[4 * step], minus2 = d[3 * step] - d[4 * step];
    to[0] = d[0] + plus + plus2;
    to[by] = minus + 2.f * minus2;
    to[2 * by] = plus + 4.f * plus2;
    to[3 * by] = minus + 8.f * minus2 + d[5 * step];
}

static inline void output_line_back(const Lane *d, int step, Lane *to, int by) {  // A d
    Lane d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    Lane even = d0 + d2, odd = d1 + d3, even2 = d0 + 4.f * d2, odd2 = 2.f * d1 + 8.f * d3;
    to[0] = d0;
    to[by] = even + odd;
    to[2 * by] = even - odd;
    to[3 * by] = even2 + odd2;
    to[4 * by] = even2 - odd2;
    to[5 * by] = d3;
}

typedef void Line(const Lane *, int, Lane *, int);

// A tile of FROM x FROM to one of TO x TO: its columns, then its rows.
template <Line line, int FROM, int TO>
static inline void both_ways(const Lane *tile, Lane *to) {
    Lane half[SLABS];
    for (int column = 0; column < FROM; column++) line(tile + column, FROM, half + column, FROM);
    for (int row = 0; row < TO; row++) line(half + row * FROM, 1, to + row * TO, 1);
}

// The pixels of a tile with SIDE x SIDE of them, from row 4 i and column 4 j less an overlap on
// each side; `beyond` stands for those outside of the image.
template <int SIDE>
static inline void pixels(float *image, int64_t H, int64_t W, int64_t C, int64_t i, int64_t j,
                          float *beyond, float **at) {
    const int overlap = (SIDE - OUT) / 2;
    for (int a = 0; a < SIDE; a++)
        for (int b = 0; b < SIDE; b++) {
            int64_t y = OUT * i + a - overlap, x = OUT * j + b - overlap;
            bool inside = 0 <= y && y < H && 0 <= x && x < W;
            at[a * SIDE + b] = inside ? image + (y * W + x) * C : beyond;
        }
}

template <Line line, int SIDE>
static void to_slabs(float *images, float *slabs, int64_t slab, int64_t N, int64_t C, int64_t H,
                     int64_t W, int threads) {
    int64_t rows = (H + OUT - 1) / OUT, columns = (W + OUT - 1) / OUT;
    std::vector<float> zeros(C);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < N * rows; row++)
        for (int64_t j = 0; j < columns; j++) {
            float *at[SIDE * SIDE], *to = slabs + (row * columns + j) * C;
            pixels<SIDE>(images + row / rows * H * W * C, H, W, C, row % rows, j, zeros.data(), at);
            for (int64_t c = 0; c < C; c += LANE) {
                Lane tile[SIDE * SIDE], out[SLABS];
                for (int k = 0; k < SIDE * SIDE; k++) tile[k] = *(Lane *)(at[k] + c);
                both_ways<line, SIDE, IN>(tile, out);
                for (int k = 0; k < SLABS; k++) *(Lane *)(to + k * slab + c) = out[k];
            }
        }
}

// Tiles that overlap are added up, every other row of them first: neighbours would write to the
// same pixels. The others are written, on top of a bias.
template <Line line, int SIDE>
static void from_slabs(float *images, float *slabs, int64_t slab, int64_t N, int64_t C, int64_t H,
                       int64_t W, int threads, const float *bias) {
    const bool adds = SIDE > OUT;
    const int64_t turns = adds ? 2 : 1;
    int64_t rows = (H + OUT - 1) / OUT, columns = (W + OUT - 1) / OUT;
    if (adds) std::memset(images, 0, sizeof(float) * N * H * W * C);
    for (int64_t turn = 0; turn < turns; turn++) {
        int64_t rows_now = (rows - turn + turns - 1) / turns;
#pragma omp parallel num_threads(threads)
        {
            std::vector<float> nowhere(C);
#pragma omp for schedule(static)
            for (int64_t row = 0; row < N * rows_now; row++)
                for (int64_t j = 0; j < columns; j++) {
                    int64_t n = row / rows_now, i = turn + turns * (row % rows_now);
                    float *at[SIDE * SIDE], *from = slabs + ((n * rows + i) * columns + j) * C;
                    pixels<SIDE>(images + n * H * W * C, H, W, C, i, j, nowhere.data(), at);
                    for (int64_t c = 0; c < C; c += LANE) {
                        Lane tile[SLABS], out[SIDE * SIDE], first = {};
                        if (bias) first = *(Lane *)(bias + c);
                        for (int k = 0; k < SLABS; k++) tile[k] = *(Lane *)(from + k * slab + c);
                        both_ways<line, IN, SIDE>(tile, out);
                        for (int k = 0; k < SIDE * SIDE; k++) {
                            Lane *to = (Lane *)(at[k] + c);
                            *to = out[k] + (adds ? *to : first);
                        }
                    }
                }
        }
    }
}

#define TRANSFORM(name)                                                                          \
    void name(float *images, float *slabs, int64_t slab, int64_t N, int64_t C, int64_t H,        \
              int64_t W, int threads, const float *bias)

extern "C" {
TRANSFORM(input_to_slabs) {
    to_slabs<input_line, IN>(images, slabs, slab, N, C, H, W, threads);
}
TRANSFORM(output_back_to_slabs) {
    to_slabs<output_line_back, OUT>(images, slabs, slab, N, C, H, W, threads);
}
TRANSFORM(slabs_to_output) {
    from_slabs<output_line, OUT>(images, slabs, slab, N, C, H, W, threads, bias);
}
TRANSFORM(slabs_back_to_input) {
    from_slabs<input_line_back, IN>(images, slabs, slab, N, C, H, W, threads, nullptr);
}
}
