/* Cuts an area out of a JPEG and resizes it, decoding no more than that area needs.

   Rows above the area are skipped, columns beside it are not transformed, the inverse DCT itself scales by 1/2, 1/4 or
   1/8 where the area is large enough for that, and decoding stops after the last row. What is left is resized by a
   linear or cubic filter whose support grows with the scale (antialiasing), row by row as rows come in.

   All arithmetic on pixels is in integers and the exact inverse DCT is used, so the result does not depend on the
   machine. Errors of libjpeg-turbo return 1 and never end the process. */

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "scan.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define BITS 14                     /* weights of the filter are integers whose sum is 1 << BITS */
#define KEPT 6                      /* bits below the point between the two passes */
#define MAX_PIXELS 128000000ull     /* trainers/data/limits.py has the same: no other decoder takes more */
#define MAX_MEMORY (1l << 30)       /* of the coefficients of a picture in several scans; 6 bytes a pixel as a rule */
#define MAX_SCANS 500               /* these two as in limits.py */
#define MAX_WORK 2000000000ull      /* pixels times scans */
#define MARGIN 4                    /* columns beside the area that smooth chroma upsampling looks at, and some */

typedef struct { /* the filter along one axis: output i is made of count[i] inputs from start[i] on */
  int *start, *count, most;
  int end;          /* behind the last input of all outputs: not always the last output's, whose trailing zeros are cut */
  int16_t *weights; /* `most` for each output, a multiple of 4; zeros after the last */
  int16_t *spread;  /* the same, each pair of weights four times, as blend_columns_avx2 takes them */
} Axis;

typedef struct {
  Axis across, down;
  uint8_t *ring;   /* the last `down.most` rows read */
  int16_t *mid;    /* one row after the vertical pass */
  const uint8_t **rows;
  size_t stride;
} Work;

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
  axis->spread = zeroed((size_t)size * axis->most, 4 * sizeof(int16_t));
  double *exact = zeroed(axis->most, sizeof(double));
  int ok = axis->start && axis->count && axis->weights && axis->spread && exact;
  axis->end = 0;
  for (int i = 0; ok && i < size; i++) {
    double centre = origin + (i + 0.5) * scale, total = 0, largest = 0;
    int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5), best = 0, rest = 1 << BITS;
    int16_t *weights = axis->weights + (size_t)i * axis->most;
    if (first < low) first = low;
    if (first > high - 1) first = high - 1;
    if (end > high) end = high;
    int count = end > first ? end - first : 1;
    for (int k = 0; k < count; k++) {
      exact[k] = height_at((first + k + 0.5 - centre) / unit, cubic);
      total += exact[k];
      if (exact[k] > largest) largest = exact[k];
    }
    if (total <= 0 || largest > 1.5 * total) { /* only ends of the filter lie inside, whose sum may be near 0 */
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
    for (int k = 0; k < axis->most; k += 2)
      for (int copy = 0; copy < 4; copy++)
        memcpy(axis->spread + ((size_t)i * axis->most + k) * 4 + copy * 2, weights + k, 2 * sizeof *weights);
  }
  free(exact);
  return ok;
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

/* The same sums, four pixels of mid at a time: each half of a register holds two, brought channel beside channel. */
__attribute__((target("avx2")))
static void blend_columns_avx2(const Axis *axis, const int16_t *mid, int first, int width, uint8_t *out) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1));
  const __m128i half = _mm_set1_epi32(1 << (BITS + KEPT - 1));
  for (int x = 0; x < width; x++, out += 3) {
    const int16_t *weights = axis->spread + (size_t)x * axis->most * 4, *pixel = mid + (axis->start[x] - first) * 3;
    __m256i sums = _mm256_setzero_si256();
    for (int k = 0; k < axis->count[x]; k += 4, pixel += 12, weights += 16) {
      __m256i four = _mm256_loadu2_m128i((const __m128i *)(pixel + 6), (const __m128i *)pixel);
      __m256i w = _mm256_loadu_si256((const __m256i *)weights);
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_shuffle_epi8(four, order), w));
    }
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum = _mm_srai_epi32(_mm_add_epi32(sum, half), BITS + KEPT);
    sum = _mm_packs_epi32(sum, sum);
    int32_t rgb = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
    memcpy(out, &rgb, x < width - 1 ? 4 : 3); /* the next pixel overwrites the fourth byte */
  }
}
#endif

static int plain; /* set by tests: leave out what only some machines have */
void trainyard_plain(int yes) { plain = yes; }

static void blend(const Work *work, int y, int left, int width, size_t bytes, uint8_t *out) {
  const int16_t *weights = work->down.weights + (size_t)y * work->down.most;
  int count = work->down.count[y];
#ifdef __x86_64__
  if (!plain && __builtin_cpu_supports("avx2")) {
    blend_rows_avx2(work->rows, weights, count, work->mid, bytes);
    blend_columns_avx2(&work->across, work->mid, left, width, out);
    return;
  }
#endif
  blend_rows_plain(work->rows, weights, count, work->mid, bytes);
  blend_columns_plain(&work->across, work->mid, left, width, out);
}

static int make_axes(Work *work, const double *box, const int *bounds, int cubic, int denominator, int columns,
                     int rows, int size_y, int size_x) {
  int low_x = bounds[0] / denominator, low_y = bounds[1] / denominator;
  int high_x = (bounds[2] + denominator - 1) / denominator, high_y = (bounds[3] + denominator - 1) / denominator;
  if (high_x > columns) high_x = columns;
  if (high_y > rows) high_y = rows;
  if (low_x < 0 || low_y < 0 || low_x >= high_x || low_y >= high_y) return 0;
  return make_axis(&work->across, box[0] / denominator, box[2] / denominator, low_x, high_x, cubic, size_x) &&
         make_axis(&work->down, box[1] / denominator, box[3] / denominator, low_y, high_y, cubic, size_y);
}

static int allot(Work *work, size_t columns) {
  work->stride = columns * 3 + 64;
  work->ring = zeroed(work->stride * work->down.most, 1);
  work->mid = zeroed(work->stride, sizeof(int16_t));
  work->rows = zeroed(work->down.most, sizeof(*work->rows));
  return work->ring && work->mid && work->rows;
}

static uint8_t *ring_row(const Work *work, int row) { return work->ring + work->stride * (row % work->down.most); }

/* One row of the result; the rows it is made of are in the ring, whose first pixel is column `first`. */
static void finish_row(Work *work, int y, int first, int size_x, uint8_t *out) {
  const Axis *down = &work->down, *across = &work->across;
  int left = across->start[0];
  for (int k = 0; k < down->most; k++)
    work->rows[k] = ring_row(work, down->start[y] + (k < down->count[y] ? k : 0)) + (left - first) * 3;
  size_t bytes = (size_t)(across->end - left) * 3;
  blend(work, y, left, size_x, bytes, out + (size_t)y * size_x * 3);
}

static void discard(Work *work) {
  void *all[] = {work->across.start, work->across.count, work->across.weights, work->across.spread, work->down.start,
                 work->down.count, work->down.weights, work->down.spread, work->ring, work->mid, work->rows};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

typedef struct {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_progress_mgr progress;
  jmp_buf back;
  Work work;
  Scan scan;
  int mcu; /* of the window: the next one that libjpeg asks for */
} Decoder;

static void give_up(j_common_ptr jpeg) { longjmp(((Decoder *)jpeg)->back, 1); }
static void say_nothing(j_common_ptr jpeg) { (void)jpeg; }
static void note(j_common_ptr jpeg, int level) {
  if (level < 0) jpeg->err->num_warnings++;
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) give_up(jpeg); /* cut short: grey would be trained on */
}
static void count_scans(j_common_ptr common) {
  j_decompress_ptr jpeg = (j_decompress_ptr)common;
  unsigned long long scans = jpeg->input_scan_number, pixels = (unsigned long long)jpeg->image_width * jpeg->image_height;
  if (scans > MAX_SCANS || scans * pixels > MAX_WORK) give_up(common);
}

/* Read the header; gives up on what is not one or three components of a bearable size. */
static void begin(Decoder *decoder, const uint8_t *data, size_t bytes) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  /* every field is set here: jpeg_std_error would bring code that cannot be linked into a shared object statically */
  decoder->errors.error_exit = give_up;
  decoder->errors.emit_message = note;
  decoder->errors.output_message = decoder->errors.reset_error_mgr = say_nothing;
  jpeg->err = &decoder->errors;
  jpeg_create_decompress(jpeg);
  jpeg->mem->max_memory_to_use = MAX_MEMORY;
  decoder->progress.progress_monitor = count_scans;
  jpeg->progress = &decoder->progress;
  jpeg_mem_src(jpeg, (unsigned char *)data, bytes);
  jpeg_read_header(jpeg, TRUE);
  if (jpeg->num_components != 1 && jpeg->num_components != 3) give_up((j_common_ptr)jpeg);
  if ((unsigned long long)jpeg->image_width * jpeg->image_height > MAX_PIXELS) give_up((j_common_ptr)jpeg);
}

static int leave(Decoder *decoder, int code) {
  jpeg_destroy_decompress(&decoder->jpeg);
  discard(&decoder->work);
  scan_close(&decoder->scan);
  free(decoder);
  return code;
}

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
/* The library's name and version, for the log. */
const char *trainyard_version(void) { return "libjpeg-turbo " TEXT_OF(LIBJPEG_TURBO_VERSION); }

/* size = {height, width, whether decoding holds all of it} of a JPEG; 1 where it is none that `trainyard_cut` takes. */
int trainyard_size(const uint8_t *data, size_t bytes, int *size) {
  Decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return 1;
  if (setjmp(decoder->back)) return leave(decoder, 1);
  begin(decoder, data, bytes);
  size[0] = (int)decoder->jpeg.image_height;
  size[1] = (int)decoder->jpeg.image_width;
  size[2] = jpeg_has_multiple_scans(&decoder->jpeg);
  return leave(decoder, 0);
}

/* By what libjpeg divides a picture's sides for this box: 8, 4, 2 or 1, as far as that leaves the wanted size. */
static int denominator_of(const double *box, int size_y, int size_x) {
  int denominator = 8;
  while (denominator > 1 && (box[2] < (double)size_x * denominator || box[3] < (double)size_y * denominator))
    denominator /= 2;
  return denominator;
}

static void start(j_decompress_ptr jpeg, int denominator) {
  jpeg->scale_num = 1;
  jpeg->scale_denom = denominator;
  jpeg->out_color_space = JCS_RGB;
  jpeg->dct_method = JDCT_ISLOW;
  jpeg_start_decompress(jpeg);
}

static int scaled(int pixels, int denominator) { return (pixels + denominator - 1) / denominator; }

/* The columns of the decoded picture that the filter looks at, and some beside them. */
static void columns_of(const Work *work, int columns, int *left, int *right) {
  int first = work->across.start[0], end = work->across.end;
  *left = first > MARGIN ? first - MARGIN : 0;
  *right = end + MARGIN < columns ? end + MARGIN : columns;
}

/* Read the rows that the filter needs, of which the decoder gives those from `top` and columns from `left` on. */
static void resize(Decoder *decoder, int left, int top, int size_y, int size_x, uint8_t *out) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  Work *work = &decoder->work;
  if (!allot(work, jpeg->output_width)) give_up((j_common_ptr)jpeg);
  int row = work->down.start[0];
  if (row > top) jpeg_skip_scanlines(jpeg, row - top);
  for (int y = 0; y < size_y; y++) {
    for (; row < work->down.start[y] + work->down.count[y]; row++) {
      JSAMPROW line = ring_row(work, row);
      if (jpeg_read_scanlines(jpeg, &line, 1) != 1) give_up((j_common_ptr)jpeg);
    }
    finish_row(work, y, left, size_x, out);
  }
}

/* libjpeg reads everything up to the area's last row. */
static void decode(Decoder *decoder, const double *box, const int *bounds, int cubic, int size_y, int size_x,
                   uint8_t *out) {
  j_decompress_ptr jpeg = &decoder->jpeg;
  int denominator = denominator_of(box, size_y, size_x), first, end;
  start(jpeg, denominator);
  if (!make_axes(&decoder->work, box, bounds, cubic, denominator, jpeg->output_width, jpeg->output_height, size_y,
                 size_x))
    give_up((j_common_ptr)jpeg);
  columns_of(&decoder->work, jpeg->output_width, &first, &end);
  JDIMENSION left = first, width = end - first;
  if (width < jpeg->output_width) jpeg_crop_scanline(jpeg, &left, &width);
  resize(decoder, left, 0, size_y, size_x, out);
}

struct jpeg_entropy_decoder { /* as in every version of libjpeg since 6, whose jpegint.h is not installed */
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

static boolean next_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
  Decoder *decoder = (Decoder *)jpeg;
  if (scan_read(&decoder->scan, decoder->mcu++, blocks)) give_up((j_common_ptr)jpeg);
  return TRUE;
}

/* Choose the MCUs around the area, and change the header's size to theirs: {left, top} is where they begin. */
static void choose_mcus(Decoder *decoder, int denominator, int *corner) {
  Scan *scan = &decoder->scan;
  const Axis *down = &decoder->work.down;
  int left, right, columns = scaled(scan->width, denominator), rows = scaled(scan->height, denominator);
  columns_of(&decoder->work, columns, &left, &right);
  int top = down->start[0] > MARGIN ? down->start[0] - MARGIN : 0;
  int bottom = down->end + MARGIN;
  int unit_x = scan->unit_x, unit_y = scan->unit_y;
  left = left * denominator / unit_x * unit_x, top = top * denominator / unit_y * unit_y;
  right = right < columns ? scaled(right * denominator, unit_x) * unit_x : scan->width;
  bottom = bottom < rows ? scaled(bottom * denominator, unit_y) * unit_y : scan->height;
  if (right > scan->width) right = scan->width;
  if (bottom > scan->height) bottom = scan->height;
  if (scan_choose(scan, left / scan->mcu_x, top / scan->mcu_y, scaled(right, scan->mcu_x), scaled(bottom, scan->mcu_y)))
    give_up((j_common_ptr)&decoder->jpeg);
  uint8_t *size = scan->header + scan->size_at;
  size[0] = (uint8_t)((bottom - top) >> 8), size[1] = (uint8_t)(bottom - top);
  size[2] = (uint8_t)((right - left) >> 8), size[3] = (uint8_t)(right - left);
  corner[0] = left / denominator, corner[1] = top / denominator;
}

/* libjpeg gets a header of the size of the area's MCUs, and asks us for their coefficients, which come from the
   segments that hold them. The filter is computed for the whole picture: its weights must be the same to the last bit. */
static void decode_window(Decoder *decoder, const uint8_t *data, size_t bytes, const double *box, const int *bounds,
                          int cubic, int size_y, int size_x, uint8_t *out) {
  Scan *scan = &decoder->scan;
  int denominator = denominator_of(box, size_y, size_x), corner[2];
  if (scan_open(scan, data, bytes) ||
      !make_axes(&decoder->work, box, bounds, cubic, denominator, scaled(scan->width, denominator),
                 scaled(scan->height, denominator), size_y, size_x))
    longjmp(decoder->back, 1);
  choose_mcus(decoder, denominator, corner);
  begin(decoder, scan->header, scan->header_bytes);
  start(&decoder->jpeg, denominator);
  decoder->jpeg.entropy->decode_mcu = next_mcu;
  resize(decoder, corner[0], corner[1], size_y, size_x, out);
}

static enum { BOTH, LIBJPEG, WINDOW } ways; /* set by tests: only libjpeg's reading, or only ours */
void trainyard_ways(int which) { ways = which; }

static int cut_window(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int size_y,
                      int size_x, uint8_t *out) {
  Decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return 1;
  if (setjmp(decoder->back)) return leave(decoder, 1);
  decode_window(decoder, data, bytes, box, bounds, cubic, size_y, size_x, out);
  return leave(decoder, 0);
}

/* Resize the area `box` = {left, top, width, height} of a JPEG, in its own pixels, to size_y x size_x RGB pixels.
   No pixel outside of `bounds` = {left, top, right, bottom} counts; `cubic` names the filter. 0, or 1 where this
   decoder cannot. */
int trainyard_cut(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int size_y,
                  int size_x, uint8_t *out) {
  if (ways != LIBJPEG && !cut_window(data, bytes, box, bounds, cubic, size_y, size_x, out)) return 0;
  if (ways == WINDOW) return 1;
  Decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return 1;
  if (setjmp(decoder->back)) return leave(decoder, 1);
  begin(decoder, data, bytes);
  decode(decoder, box, bounds, cubic, size_y, size_x, out);
  return leave(decoder, 0);
}

/* The same from decoded RGB pixels, `height` rows of `width`. */
int trainyard_resize(const uint8_t *pixels, int height, int width, const double *box, const int *bounds, int cubic,
                     int size_y, int size_x, uint8_t *out) {
  Work work = {0};
  int ok = make_axes(&work, box, bounds, cubic, 1, width, height, size_y, size_x) && allot(&work, width);
  for (int y = 0, row = ok ? work.down.start[0] : 0; ok && y < size_y; y++) {
    for (; row < work.down.start[y] + work.down.count[y]; row++)
      memcpy(ring_row(&work, row), pixels + (size_t)row * width * 3, (size_t)width * 3);
    finish_row(&work, y, 0, size_x, out);
  }
  discard(&work);
  return !ok;
}
