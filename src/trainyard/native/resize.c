/* Resizes an area of RGB pixels by a linear or cubic filter whose support grows with the scale (antialiasing).

   First rows are blended into one, then that row's columns. Weights and sums are integers, so that plain C and vector
   instructions of any width give the same bits. */

#include "resize.h"
#include "library.h"

#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define BITS 14 /* weights of the filter are integers whose sum is 1 << BITS */
#define KEPT 6  /* bits below the point between the two passes */

static void *zeroed(size_t count, size_t size) { return calloc(count + 16, size); }

/* The filter's height at a distance: a triangle, or Keys's cubic convolution with a = -1/2 (IEEE ASSP 29(6), 1981). */
static double height_at(double x, int cubic) {
  if (x < 0) x = -x;
  if (!cubic) return x < 1 ? 1 - x : 0;
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static int make_axis(Axis *axis, double origin, double extent, int low, int high, int cubic, int size) {
  double scale = extent / size, unit = scale > 1 ? scale : 1, support = unit * (1 + cubic);
  axis->most = ((int)(2 * support) + 5) & ~3;
  axis->start = zeroed(size, sizeof(int));
  axis->count = zeroed(size, sizeof(int));
  axis->weights = zeroed((size_t)size * axis->most, sizeof(int16_t));
  double *exact = zeroed(axis->most, sizeof(double));
  int ok = axis->start && axis->count && axis->weights && exact;
  axis->end = 0;
  for (int i = 0; ok && i < size; i++) {
    double centre = origin + (i + 0.5) * scale, total = 0, positive = 0;
    int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5), best = 0, rest = 1 << BITS;
    int16_t *weights = axis->weights + (size_t)i * axis->most;
    if (first < low) first = low;
    if (first > high - 1) first = high - 1;
    if (end > high) end = high;
    int count = end > first ? end - first : 1;
    for (int k = 0; k < count; k++) {
      exact[k] = height_at((first + k + 0.5 - centre) / unit, cubic);
      total += exact[k];
      if (exact[k] > 0) positive += exact[k];
    }
    /* Only ends of the filter lie inside, whose sum may be near 0: weights of more than 1.5 together may overflow sums. */
    if (total <= 0 || positive > 1.5 * total) {
      double at = centre - first;
      memset(exact, 0, count * sizeof *exact);
      exact[at <= 0 ? 0 : at >= count ? count - 1 : (int)at] = total = 1;
    }
    for (int k = 0; k < count; k++) {
      double weight = exact[k] / total * (1 << BITS);
      weights[k] = (int16_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
      rest -= weights[k];
      if (weights[k] > weights[best]) best = k;
    }
    weights[best] = (int16_t)(weights[best] + rest); /* a plain area stays exactly as it is */
    while (count > 1 && !weights[count - 1]) count--;
    axis->start[i] = first;
    axis->count[i] = count;
    if (first + count > axis->end) axis->end = first + count;
  }
  free(exact);
  return ok;
}

/* Lay the weights out as blend_columns takes them; a last group that is not full gets outputs of weight zero. */
static int spread_weights(Axis *axis, int size) {
  int groups = (size + GROUP - 1) / GROUP, pairs = axis->most / 2;
  axis->pairs = zeroed(groups, sizeof(int));
  axis->spread = zeroed((size_t)groups * pairs, GROUP * 8 * sizeof(int16_t));
  if (!axis->pairs || !axis->spread) return 0;
  for (int i = size; i < groups * GROUP; i++) axis->start[i] = axis->start[size - 1];
  for (int i = 0; i < size; i++) {
    int group = i / GROUP, needed = (axis->count[i] + 1) / 2;
    if (needed > axis->pairs[group]) axis->pairs[group] = needed;
    for (int k = 0; k < needed; k++)
      for (int copy = 0; copy < 4; copy++)
        memcpy(axis->spread + (((size_t)group * pairs + k) * GROUP + i % GROUP) * 8 + copy * 2,
               axis->weights + (size_t)i * axis->most + 2 * k, 2 * sizeof(int16_t));
  }
  return 1;
}

/* mid = the rows, weighted: `count` rows, `bytes` of each */
static void blend_rows_plain(const uint8_t **rows, const int16_t *weights, int count, int16_t *mid, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    int32_t sum = 1 << (BITS - KEPT - 1);
    for (int k = 0; k < count; k++) sum += weights[k] * rows[k][i];
    mid[i] = (int16_t)(sum >> (BITS - KEPT));
  }
}

/* out = one row of `width` pixels, from mid, whose first pixel is column `first` */
static void blend_columns_plain(const Axis *axis, const int16_t *mid, int first, int width, uint8_t *out) {
  for (int x = 0; x < width; x++) {
    const int16_t *weights = axis->weights + (size_t)x * axis->most, *pixel = mid + (axis->start[x] - first) * 3;
    for (int c = 0; c < 3; c++) {
      int32_t sum = 1 << (BITS + KEPT - 1);
      for (int k = 0; k < axis->count[x]; k++) sum += weights[k] * pixel[k * 3 + c];
      sum >>= BITS + KEPT;
      *out++ = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
  }
}

#ifdef __x86_64__
/* The same sums, 32 bytes of two rows at a time. Rows and mid are padded. */
__attribute__((target("avx2")))
static void blend_rows_avx2(const uint8_t **rows, const int16_t *weights, int count, int16_t *mid, size_t bytes) {
  const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (BITS - KEPT - 1));
  for (size_t i = 0; i < bytes; i += 32) {
    __m256i sum[4] = {half, half, half, half};
    for (int k = 0; k < count; k += 2) {
      int32_t pair;
      memcpy(&pair, weights + k, sizeof pair);
      __m256i w = _mm256_set1_epi32(pair), a = _mm256_loadu_si256((const __m256i *)(rows[k] + i));
      __m256i b = _mm256_loadu_si256((const __m256i *)(rows[k + 1] + i));
      __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
      sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
      sum[1] = _mm256_add_epi32(sum[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
      sum[2] = _mm256_add_epi32(sum[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
      sum[3] = _mm256_add_epi32(sum[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
    }
    for (int k = 0; k < 4; k++) sum[k] = _mm256_srai_epi32(sum[k], BITS - KEPT);
    __m256i even = _mm256_packs_epi32(sum[0], sum[1]), odd = _mm256_packs_epi32(sum[2], sum[3]);
    _mm256_storeu_si256((__m256i *)(mid + i), _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256((__m256i *)(mid + i + 16), _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

/* The same, 64 bytes at a time. */
__attribute__((target("avx512bw,avx512vnni")))
static void blend_rows_avx512(const uint8_t **rows, const int16_t *weights, int count, int16_t *mid, size_t bytes) {
  const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(1 << (BITS - KEPT - 1));
  const __m512i front = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), back = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (size_t i = 0; i < bytes; i += 64) {
    __m512i sum[4] = {half, half, half, half};
    for (int k = 0; k < count; k += 2) {
      int32_t pair;
      memcpy(&pair, weights + k, sizeof pair);
      __m512i w = _mm512_set1_epi32(pair), a = _mm512_loadu_si512(rows[k] + i), b = _mm512_loadu_si512(rows[k + 1] + i);
      __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
      sum[0] = _mm512_dpwssd_epi32(sum[0], _mm512_unpacklo_epi8(low, zero), w);
      sum[1] = _mm512_dpwssd_epi32(sum[1], _mm512_unpackhi_epi8(low, zero), w);
      sum[2] = _mm512_dpwssd_epi32(sum[2], _mm512_unpacklo_epi8(high, zero), w);
      sum[3] = _mm512_dpwssd_epi32(sum[3], _mm512_unpackhi_epi8(high, zero), w);
    }
    for (int k = 0; k < 4; k++) sum[k] = _mm512_srai_epi32(sum[k], BITS - KEPT);
    __m512i even = _mm512_packs_epi32(sum[0], sum[1]), odd = _mm512_packs_epi32(sum[2], sum[3]);
    _mm512_storeu_si512(mid + i, _mm512_permutex2var_epi64(even, front, odd));
    _mm512_storeu_si512(mid + i + 32, _mm512_permutex2var_epi64(even, back, odd));
  }
}

/* Bring two pixels of a register's 16 bytes channel beside channel; drop the fourth byte of each of four pixels. */
#define CHANNELS _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1)
#define RGB _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)

/* Write 12 bytes; `left` pixels remain, and four bytes more may be overwritten where they are the row's. */
static inline void put(uint8_t *out, __m128i rgb, int left) {
  if (left >= 6) _mm_storeu_si128((__m128i *)out, rgb);
  else memcpy(out, &rgb, 3 * (left < GROUP ? left : GROUP));
}

static inline __m128i two_pixels(const int16_t *from) { return _mm_loadu_si128((const __m128i *)from); }

/* The same sums, two inputs of four outputs at a time: each 16 bytes of a register belong to one output. */
__attribute__((target("avx2")))
static void blend_columns_avx2(const Axis *axis, const int16_t *mid, int first, int width, uint8_t *out) {
  const __m256i order = _mm256_broadcastsi128_si256(CHANNELS), half = _mm256_set1_epi32(1 << (BITS + KEPT - 1));
  for (int x = 0; x < width; x += GROUP, out += 3 * GROUP) {
    const int *start = axis->start + x;
    const int16_t *one = mid + (start[0] - first) * 3, *two = mid + (start[1] - first) * 3;
    const int16_t *three = mid + (start[2] - first) * 3, *four = mid + (start[3] - first) * 3;
    const __m256i *weights = (const __m256i *)(axis->spread + (size_t)x * axis->most * 4);
    __m256i front = half, back = half;
    for (int k = 0; k < axis->pairs[x / GROUP]; k++) {
      __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(two_pixels(one + 6 * k)), two_pixels(two + 6 * k), 1);
      __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(two_pixels(three + 6 * k)), two_pixels(four + 6 * k), 1);
      a = _mm256_madd_epi16(_mm256_shuffle_epi8(a, order), _mm256_loadu_si256(weights + 2 * k));
      b = _mm256_madd_epi16(_mm256_shuffle_epi8(b, order), _mm256_loadu_si256(weights + 2 * k + 1));
      front = _mm256_add_epi32(front, a), back = _mm256_add_epi32(back, b);
    }
    front = _mm256_packs_epi32(_mm256_srai_epi32(front, BITS + KEPT), _mm256_srai_epi32(back, BITS + KEPT));
    front = _mm256_packus_epi16(front, front); /* outputs 0 and 2, then 1 and 3 */
    __m128i all = _mm_unpacklo_epi32(_mm256_castsi256_si128(front), _mm256_extracti128_si256(front, 1));
    put(out, _mm_shuffle_epi8(all, RGB), width - x);
  }
}

__attribute__((target("avx512bw,avx512vnni")))
static void blend_columns_avx512(const Axis *axis, const int16_t *mid, int first, int width, uint8_t *out) {
  const __m512i order = _mm512_broadcast_i32x4(CHANNELS), half = _mm512_set1_epi32(1 << (BITS + KEPT - 1));
  for (int x = 0; x < width; x += GROUP, out += 3 * GROUP) {
    const int *start = axis->start + x;
    const int16_t *one = mid + (start[0] - first) * 3, *two = mid + (start[1] - first) * 3;
    const int16_t *three = mid + (start[2] - first) * 3, *four = mid + (start[3] - first) * 3;
    const int16_t *weights = axis->spread + (size_t)x * axis->most * 4;
    __m512i sum = half;
    for (int k = 0; k < axis->pairs[x / GROUP]; k++, weights += 8 * GROUP) {
      __m512i pixels = _mm512_castsi128_si512(two_pixels(one + 6 * k));
      pixels = _mm512_inserti32x4(pixels, two_pixels(two + 6 * k), 1);
      pixels = _mm512_inserti32x4(pixels, two_pixels(three + 6 * k), 2);
      pixels = _mm512_inserti32x4(pixels, two_pixels(four + 6 * k), 3);
      sum = _mm512_dpwssd_epi32(sum, _mm512_shuffle_epi8(pixels, order), _mm512_loadu_si512(weights));
    }
    sum = _mm512_max_epi32(_mm512_srai_epi32(sum, BITS + KEPT), _mm512_setzero_si512());
    put(out, _mm_shuffle_epi8(_mm512_cvtusepi32_epi8(sum), RGB), width - x);
  }
}
#endif

int widest_vectors = 512;
void trainyard_vectors(int bits) { widest_vectors = bits; }

static void blend(const Work *work, int y, int left, int width, size_t bytes, uint8_t *out) {
  const int16_t *weights = work->down.weights + (size_t)y * work->down.most;
  int count = work->down.count[y];
#ifdef __x86_64__
  if (widest_vectors >= 512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) {
    blend_rows_avx512(work->rows, weights, count, work->mid, bytes);
    blend_columns_avx512(&work->across, work->mid, left, width, out);
    return;
  }
  if (widest_vectors >= 256 && __builtin_cpu_supports("avx2")) {
    blend_rows_avx2(work->rows, weights, count, work->mid, bytes);
    blend_columns_avx2(&work->across, work->mid, left, width, out);
    return;
  }
#endif
  blend_rows_plain(work->rows, weights, count, work->mid, bytes);
  blend_columns_plain(&work->across, work->mid, left, width, out);
}

int resize_axes(Work *work, const double *box, const int *bounds, int cubic, int denominator, int columns, int rows,
                int size_y, int size_x) {
  int low_x = bounds[0] / denominator, low_y = bounds[1] / denominator;
  int high_x = (bounds[2] + denominator - 1) / denominator, high_y = (bounds[3] + denominator - 1) / denominator;
  if (high_x > columns) high_x = columns;
  if (high_y > rows) high_y = rows;
  if (low_x < 0 || low_y < 0 || low_x >= high_x || low_y >= high_y) return 0;
  return make_axis(&work->across, box[0] / denominator, box[2] / denominator, low_x, high_x, cubic, size_x) &&
         make_axis(&work->down, box[1] / denominator, box[3] / denominator, low_y, high_y, cubic, size_y) &&
         spread_weights(&work->across, size_x);
}

int resize_allot(Work *work, size_t columns) {
  work->stride = columns * 3 + 64;
  work->ring = zeroed(work->stride * work->down.most, 1);
  /* an output's group may need more inputs than it does: weights of zero reach beyond the end */
  work->mid = zeroed(work->stride + 3 * (size_t)work->across.most, sizeof(int16_t));
  work->rows = zeroed(work->down.most, sizeof(*work->rows));
  return work->ring && work->mid && work->rows;
}

uint8_t *resize_ring(const Work *work, int row) { return work->ring + work->stride * (row % work->down.most); }

/* One row of the result; the rows it is made of are in the ring, whose first pixel is column `first`. */
void resize_row(Work *work, int y, int first, int size_x, uint8_t *out) {
  const Axis *down = &work->down, *across = &work->across;
  int left = across->start[0];
  for (int k = 0; k < down->most; k++)
    work->rows[k] = resize_ring(work, down->start[y] + (k < down->count[y] ? k : 0)) + (left - first) * 3;
  size_t bytes = (size_t)(across->end - left) * 3;
  blend(work, y, left, size_x, bytes, out + (size_t)y * size_x * 3);
}

void resize_discard(Work *work) {
  void *all[] = {work->across.start, work->across.count, work->across.weights, work->across.pairs, work->across.spread,
                 work->down.start, work->down.count, work->down.weights, work->ring, work->mid, work->rows};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* As trainyard_cut, from decoded RGB pixels, `height` rows of `width`. */
int trainyard_resize(const uint8_t *pixels, int height, int width, const double *box, const int *bounds, int cubic,
                     int size_y, int size_x, uint8_t *out) {
  Work work = {0};
  int ok = resize_axes(&work, box, bounds, cubic, 1, width, height, size_y, size_x) && resize_allot(&work, width);
  for (int y = 0, row = ok ? work.down.start[0] : 0; ok && y < size_y; y++) {
    for (; row < work.down.start[y] + work.down.count[y]; row++)
      memcpy(resize_ring(&work, row), pixels + (size_t)row * width * 3, (size_t)width * 3);
    resize_row(&work, y, 0, size_x, out);
  }
  resize_discard(&work);
  return !ok;
}
