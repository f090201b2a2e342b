/* Changes an image's shape and colour, in place: what trainyard/data/augmentation.py draws, a flip, a rectangle.

   Pixels are RGB, three bytes each, row by row. Colours are what torchvision's functions give, to the last bit: each
   sum of theirs that is one fused multiply-add is `fused` here, which needs no such instruction. Turning, shearing and
   shifting are bilinear in whole numbers, and within 1 of 255 of torchvision's. Nothing depends on the machine. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "library.h"

#define LARGEST 65536       /* height and width */
#define NUMBERS 8           /* of a step: which one, and up to seven more */
#define ONE (1ll << 32)     /* positions have 32 bits below the point */
#define SHARES 11           /* bits of a neighbour's share of a pixel */
#define HALFWAY 4           /* bits that are dropped between the two passes */
#define POINT (2 * SHARES - HALFWAY)

enum { FLIP, MOVE, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE, SOLARIZE_ADD, AUTO_CONTRAST, EQUALIZE,
       INVERT, ERASE }; /* trainyard/data/changes.py has the same order */

typedef struct {
  uint8_t *pixels, *copy; /* the copy has room for 8 bytes more */
  int height, width;
  const uint8_t *colour;
} Image;

typedef uint8_t Table[3][256]; /* of each channel: what becomes of a value */

/* a * b + c, rounded once: the double holds the exact sum of these small numbers. */
static inline __attribute__((always_inline)) float fused(float a, float b, float c, int fast) {
#ifdef __x86_64__
  if (fast) return __builtin_fmaf(a, b, c);
#endif
  (void)fast;
  return (float)((double)a * b + c);
}

static inline __attribute__((always_inline)) uint8_t clamped(float value) {
  int whole = (int)value;
  return (uint8_t)(whole < 0 ? 0 : whole > 255 ? 255 : whole);
}

/* Lightness, a whole number: ITU-R BT.601's weights, cut to four digits as in torchvision. */
static inline __attribute__((always_inline)) float grey(const uint8_t *pixel, int fast) {
  float sum = fused(pixel[2], 0.114f, fused(pixel[1], 0.587f, pixel[0] * 0.2989f, fast), fast);
  return (float)(int)sum;
}

static inline __attribute__((always_inline)) void colour_pixels(uint8_t *pixels, size_t count, float ratio, float rest,
                                                                int fast) {
  for (size_t i = 0; i < count; i++) {
    float light = grey(pixels + i * 3, fast);
    for (int c = 0; c < 3; c++) pixels[i * 3 + c] = clamped(fused(light, rest, pixels[i * 3 + c] * ratio, fast));
  }
}

static inline __attribute__((always_inline)) uint64_t total_grey(const uint8_t *pixels, size_t count, int fast) {
  uint64_t total = 0;
  while (count) {
    size_t part = count < 4096 ? count : 4096;
    int32_t sum = 0;
    for (size_t i = 0; i < part; i++) sum += (int)grey(pixels + i * 3, fast);
    total += (uint64_t)sum, pixels += part * 3, count -= part;
  }
  return total;
}

/* Brightness and contrast: value * ratio + rest * mean. */
static inline __attribute__((always_inline)) void scale_values(uint8_t *bytes, size_t count, float ratio, float rest,
                                                               float mean, int fast) {
  for (size_t i = 0; i < count; i++) bytes[i] = clamped(fused(mean, rest, bytes[i] * ratio, fast));
}

/* One row, sharpened or softened: against the mean of a pixel, five times, and its eight neighbours. */
static inline __attribute__((always_inline)) void sharpen_row(const uint8_t *in, size_t stride, size_t bytes, float rest,
                                                              uint8_t *out, int fast) {
  for (size_t i = 0; i < bytes; i++) {
    const uint8_t *p = in + i;
    int sum = p[-3] + p[0] + p[3];
    sum += p[-3 - (ptrdiff_t)stride] + p[-(ptrdiff_t)stride] + p[3 - (ptrdiff_t)stride];
    sum += p[stride - 3] + p[stride] + p[stride + 3] + 4 * p[0];
    int blurred = ((sum + 6) * 20165) >> 18; /* / 13, rounded: exact up to 13 * 255 + 6 */
    out[i] = clamped(fused((float)(blurred - p[0]), rest, p[0], fast));
  }
}

static void colour_plain(uint8_t *pixels, size_t count, float ratio, float rest) {
  colour_pixels(pixels, count, ratio, rest, 0);
}
static uint64_t grey_plain(const uint8_t *pixels, size_t count) { return total_grey(pixels, count, 0); }
static void scale_plain(uint8_t *bytes, size_t count, float ratio, float rest, float mean) {
  scale_values(bytes, count, ratio, rest, mean, 0);
}
static void sharpen_plain(const uint8_t *in, size_t stride, size_t bytes, float rest, uint8_t *out) {
  sharpen_row(in, stride, bytes, rest, out, 0);
}

#ifdef __x86_64__
#define FAST __attribute__((target("avx2,fma")))
FAST static void colour_fast(uint8_t *pixels, size_t count, float ratio, float rest) {
  colour_pixels(pixels, count, ratio, rest, 1);
}
FAST static uint64_t grey_fast(const uint8_t *pixels, size_t count) { return total_grey(pixels, count, 1); }
FAST static void scale_fast(uint8_t *bytes, size_t count, float ratio, float rest, float mean) {
  scale_values(bytes, count, ratio, rest, mean, 1);
}
FAST static void sharpen_fast(const uint8_t *in, size_t stride, size_t bytes, float rest, uint8_t *out) {
  sharpen_row(in, stride, bytes, rest, out, 1);
}
static int fast(void) {
  return widest_vectors >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
#define colour_fast colour_plain
#define grey_fast grey_plain
#define scale_fast scale_plain
#define sharpen_fast sharpen_plain
static int fast(void) { return 0; }
#endif

static size_t pixels_of(const Image *image) { return (size_t)image->height * image->width; }

static void look_up(const Image *image, Table table) {
  uint8_t *at = image->pixels, *end = at + pixels_of(image) * 3;
  for (; at < end; at += 3) at[0] = table[0][at[0]], at[1] = table[1][at[1]], at[2] = table[2][at[2]];
}

static void brightness(const Image *image, double strength) {
  (fast() ? scale_fast : scale_plain)(image->pixels, pixels_of(image) * 3, (float)strength, 0, 0);
}

static void contrast(const Image *image, double strength) {
  size_t count = pixels_of(image);
  uint64_t sum = (fast() ? grey_fast : grey_plain)(image->pixels, count);
  float mean = (float)((double)sum / (double)count);
  (fast() ? scale_fast : scale_plain)(image->pixels, count * 3, (float)strength, (float)(1.0 - strength), mean);
}

static void posterize(uint8_t *bytes, size_t count, int bits) {
  uint8_t mask = (uint8_t)(0xff00 >> bits);
  for (size_t i = 0; i < count; i++) bytes[i] &= mask;
}

static void solarize(uint8_t *bytes, size_t count, float threshold) {
  int least = 0;
  while (least < 256 && (float)least < threshold) least++;
  uint8_t from = (uint8_t)least;
  for (size_t i = 0; least < 256 && i < count; i++) bytes[i] = bytes[i] >= from ? (uint8_t)~bytes[i] : bytes[i];
}

static void solarize_add(uint8_t *bytes, size_t count, int more) {
  for (size_t i = 0; i < count; i++) {
    int sum = bytes[i] + more;
    bytes[i] = bytes[i] >= 128 ? bytes[i] : sum > 255 ? 255 : (uint8_t)sum;
  }
}

static inline __attribute__((always_inline)) void take_in(const uint8_t *in, size_t count, uint8_t *least,
                                                          uint8_t *most) {
  for (size_t k = 0; k < count; k++) least[k] = in[k] < least[k] ? in[k] : least[k];
  for (size_t k = 0; k < count; k++) most[k] = in[k] > most[k] ? in[k] : most[k];
}

/* Each channel's least value becomes 0 and its largest 255. */
static void auto_contrast(const Image *image) {
  uint8_t least[48], most[48]; /* of 16 pixels side by side */
  size_t bytes = pixels_of(image) * 3, i = 0;
  Table table;
  memset(least, 255, sizeof least), memset(most, 0, sizeof most);
  for (; i + 48 <= bytes; i += 48) take_in(image->pixels + i, 48, least, most);
  take_in(image->pixels + i, bytes - i, least, most);
  for (int c = 0; c < 3; c++) {
    int low = 255, high = 0;
    for (int k = c; k < 48; k += 3) low = least[k] < low ? least[k] : low, high = most[k] > high ? most[k] : high;
    float scale = (float)(high - low) * (float)(1.0 / 255.0);
    for (int v = 0; v < 256; v++) table[c][v] = high == low ? (uint8_t)v : clamped((float)(v - low) / scale);
  }
  look_up(image, table);
}

/* Each channel's values become about equally frequent; by Pillow's rule (ImageOps.equalize), which torchvision has too. */
static void equalize(const Image *image) {
  uint32_t counts[2][3][256] = {0}; /* neighbours are often equal: two counters in turn wait less for each other */
  size_t count = pixels_of(image);
  const uint8_t *at = image->pixels;
  Table table;
  for (size_t i = 0; i < count; i++, at += 3)
    for (int c = 0; c < 3; c++) counts[i & 1][c][at[c]]++;
  for (int c = 0; c < 3; c++) {
    uint64_t last = 0, step, before;
    for (int v = 0; v < 256; v++) {
      counts[0][c][v] += counts[1][c][v];
      if (counts[0][c][v]) last = counts[0][c][v];
    }
    step = (count - last) / 255, before = step / 2;
    for (int v = 0; v < 256; before += counts[0][c][v++])
      table[c][v] = !step ? (uint8_t)v : before / step > 255 ? 255 : (uint8_t)(before / step);
  }
  look_up(image, table);
}

static void keep_copy(const Image *image) { memcpy(image->copy, image->pixels, pixels_of(image) * 3); }

static void sharpen(const Image *image, double strength) {
  size_t stride = (size_t)image->width * 3;
  if (image->height <= 2 || image->width <= 2) return;
  keep_copy(image);
  for (int y = 1; y < image->height - 1; y++) {
    size_t at = y * stride + 3;
    (fast() ? sharpen_fast : sharpen_plain)(image->copy + at, stride, stride - 6, (float)(1.0 - strength),
                                            image->pixels + at);
  }
}

static void flip(const Image *image) {
  for (int y = 0; y < image->height; y++) {
    uint8_t *low = image->pixels + (size_t)y * image->width * 3, *high = low + ((size_t)image->width - 1) * 3;
    for (; low < high; low += 3, high -= 3) {
      uint8_t kept[3];
      memcpy(kept, low, 3), memcpy(low, high, 3), memcpy(high, kept, 3);
    }
  }
}

static void paint(uint8_t *at, int count, const uint8_t *colour) {
  for (int x = 0; x < count; x++) memcpy(at + x * 3, colour, 3);
}

static void erase(const Image *image, int top, int left, int tall, int wide) {
  for (int y = top; y < top + tall; y++)
    paint(image->pixels + ((size_t)y * image->width + left) * 3, wide, image->colour);
}

typedef struct { /* where a row's pixels come from: the first one's place and the step to the next, in 1/ONE pixels */
  int64_t x, y, step_x, step_y;
} Line;

static int column(const Line *line, int x) { return (int)((line->x + x * line->step_x) >> 32); }
static int row(const Line *line, int x) { return (int)((line->y + x * line->step_y) >> 32); }
static int share(int64_t place) { return (int)(place >> (32 - SHARES)) & ((1 << SHARES) - 1); }

/* Shorten first .. end - 1 to those x for which `low` <= at + x * step < `high`, all in whole pixels but at and step. */
static void clip(int64_t at, int64_t step, int64_t low, int64_t high, int *first, int *end) {
  low = low * ONE - at, high = high * ONE - at;
  if (step < 0) { /* the same for -step: -high < x * -step <= -low */
    int64_t swapped = 1 - high;
    high = 1 - low, low = swapped, step = -step;
  }
  int64_t from = step ? (low <= 0 ? 0 : (low + step - 1) / step) : low <= 0 ? 0 : INT32_MAX;
  int64_t to = step ? (high <= 0 ? 0 : (high + step - 1) / step) : high <= 0 ? 0 : INT32_MAX;
  if (from > *first) *first = from < *end ? (int)from : *end;
  if (to < *end) *end = to > *first ? (int)to : *first;
}

/* The x of a line whose places have neighbours in the image within `margin` pixels around it. */
static void reach(const Image *image, const Line *line, int margin, int *first, int *end) {
  clip(line->x, line->step_x, -margin, image->width - 1 + margin, first, end);
  clip(line->y, line->step_y, -margin, image->height - 1 + margin, first, end);
}

/* The sum of two rows' two neighbours, POINT bits below the point. */
static inline int32_t blended(const int *four, int across, int down) {
  int one = 1 << SHARES, half = 1 << (HALFWAY - 1);
  int top = (four[0] * (one - across) + four[1] * across + half) >> HALFWAY;
  int bottom = (four[2] * (one - across) + four[3] * across + half) >> HALFWAY;
  return top * (one - down) + bottom * down;
}

/* A pixel some of whose neighbours lie outside: they are black, and with `fill` its colour shows through. */
static void blend_edge(const Image *image, const Line *line, int x, int fill, uint8_t *out) {
  int left = column(line, x), top = row(line, x), width = image->width, height = image->height;
  int64_t across = share(line->x + x * line->step_x), down = share(line->y + x * line->step_y);
  int64_t one = 1 << SHARES, all = one * one, mask = 0, sums[3] = {0, 0, 0};
  for (int n = 0; n < 4; n++) {
    int i = left + n % 2, j = top + n / 2;
    if (i < 0 || i >= width || j < 0 || j >= height) continue;
    int64_t weight = (n % 2 ? across : one - across) * (n / 2 ? down : one - down);
    mask += weight;
    for (int c = 0; c < 3; c++) sums[c] += weight * image->copy[((size_t)j * width + i) * 3 + c];
  }
  for (int c = 0; c < 3; c++) {
    /* as in torchvision, what is partly outside is darkened by its share twice */
    if (fill) sums[c] = (sums[c] * mask + image->colour[c] * (all - mask) * all) / all;
    out[c] = (uint8_t)((sums[c] + all / 2) / all);
  }
}

/* Where all places of a row have the same shares, it is a sum of bytes side by side. */
static inline __attribute__((always_inline)) void blend_straight(const uint8_t *p, size_t stride, int across, int down,
                                                                 size_t bytes, uint8_t *out) {
  for (size_t i = 0; i < bytes; i++) {
    int four[4] = {p[i], p[i + 3], p[i + stride], p[i + stride + 3]};
    out[i] = (uint8_t)((blended(four, across, down) + (1 << (POINT - 1))) >> POINT);
  }
}

static int straight(const Line *line) { return line->step_x == ONE && line->step_y == 0; }

static void blend_plain(const Image *image, const Line *line, int first, int end, uint8_t *out) {
  size_t stride = (size_t)image->width * 3;
  for (int x = first; x < end; x++) {
    const uint8_t *p = image->copy + row(line, x) * stride + (size_t)column(line, x) * 3;
    int across = share(line->x + x * line->step_x), down = share(line->y + x * line->step_y);
    for (int c = 0; c < 3; c++) {
      int four[4] = {p[c], p[c + 3], p[stride + c], p[stride + c + 3]};
      out[x * 3 + c] = (uint8_t)((blended(four, across, down) + (1 << (POINT - 1))) >> POINT);
    }
  }
}

#ifdef __x86_64__
/* The same sums: the row above in one half of a register, the one below in the other, neighbour beside neighbour. */
FAST static void blend_fast(const Image *image, const Line *line, int first, int end, uint8_t *out) {
  const __m256i pairs = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m128i half = _mm_set1_epi32(1 << (POINT - 1));
  size_t stride = (size_t)image->width * 3;
  int64_t at_x = line->x + first * line->step_x, at_y = line->y + first * line->step_y;
  if (straight(line)) {
    const uint8_t *p = image->copy + (at_y >> 32) * stride + (size_t)(at_x >> 32) * 3;
    size_t bytes = (size_t)(end - first) * 3;
    if (share(at_x) | share(at_y)) blend_straight(p, stride, share(at_x), share(at_y), bytes, out + first * 3);
    else memcpy(out + first * 3, p, bytes);
    return;
  }
  for (int x = first; x < end; x++, at_x += line->step_x, at_y += line->step_y) {
    const uint8_t *p = image->copy + (at_y >> 32) * stride + (size_t)(at_x >> 32) * 3;
    __m256i four = _mm256_set_m128i(_mm_loadl_epi64((const __m128i *)(p + stride)), _mm_loadl_epi64((const __m128i *)p));
    int across = share(at_x), down = share(at_y);
    __m256i sums = _mm256_madd_epi16(_mm256_shuffle_epi8(four, pairs),
                                     _mm256_set1_epi32(((1 << SHARES) - across) | across << 16));
    sums = _mm256_srli_epi32(_mm256_add_epi32(sums, _mm256_set1_epi32(1 << (HALFWAY - 1))), HALFWAY);
    __m128i both = _mm_or_si128(_mm256_castsi256_si128(sums), _mm_slli_epi32(_mm256_extracti128_si256(sums, 1), 16));
    __m128i sum = _mm_madd_epi16(both, _mm_set1_epi32(((1 << SHARES) - down) | down << 16));
    sum = _mm_srli_epi32(_mm_add_epi32(sum, half), POINT);
    sum = _mm_packs_epi32(sum, sum);
    int32_t rgb = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
    memcpy(out + x * 3, &rgb, x < end - 1 ? 4 : 3); /* the next pixel overwrites the fourth byte */
  }
}
#else
#define blend_fast blend_plain
#endif

/* A row: outside, partly outside, inside, partly outside, outside. */
static void move_row(const Image *image, const Line *line, int fill, uint8_t *out) {
  static const uint8_t black[3];
  const uint8_t *empty = fill ? image->colour : black;
  int first = 0, end = image->width, inner, inner_end;
  reach(image, line, 1, &first, &end);
  inner = first, inner_end = end;
  reach(image, line, 0, &inner, &inner_end);
  paint(out, first, empty);
  for (int x = first; x < inner; x++) blend_edge(image, line, x, fill, out + x * 3);
  if (inner < inner_end) (fast() ? blend_fast : blend_plain)(image, line, inner, inner_end, out);
  for (int x = inner_end; x < end; x++) blend_edge(image, line, x, fill, out + x * 3);
  paint(out + end * 3, image->width - end, empty);
}

/* Pixel (x, y) comes from (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]), both from the image's centre. */
static void move(const Image *image, const double *m, int fill) {
  double right = (image->width - 1) / 2.0, bottom = (image->height - 1) / 2.0;
  int64_t nearest = ONE >> (SHARES + 1);
  Line line = {.step_x = (int64_t)(m[0] * ONE), .step_y = (int64_t)(m[3] * ONE)};
  keep_copy(image);
  for (int y = 0; y < image->height; y++) {
    line.x = (int64_t)((m[1] * (y - bottom) - m[0] * right + m[2] + right) * ONE) + nearest;
    line.y = (int64_t)((m[4] * (y - bottom) - m[3] * right + m[5] + bottom) * ONE) + nearest;
    move_row(image, &line, fill, image->pixels + (size_t)y * image->width * 3);
  }
}

static double absolute(double value) { return value < 0 ? -value : value; }
static int within(double value, double low, double high) { return value >= low && value <= high; }

/* Whether a step's numbers are such that nothing overflows, and a rectangle lies in the image. */
static int valid(const Image *image, const double *step) {
  int ok = within(step[0], FLIP, ERASE) && step[0] == (int)step[0];
  switch (ok ? (int)step[0] : FLIP) {
    case MOVE:
      for (int n = 1; n < 7; n++) ok &= within(absolute(step[n]), 0, n % 3 ? 16 : 1 << 20);
      return ok;
    case ERASE:
      for (int n = 1; n < 5; n++) ok &= within(step[n], 0, LARGEST);
      return ok && step[1] + step[3] <= image->height && step[2] + step[4] <= image->width;
    case POSTERIZE: return within(step[1], 0, 8);
    case SOLARIZE_ADD: return within(step[1], 0, 255);
    default: return ok && within(absolute(step[1]), 0, 1000);
  }
}

static void take(const Image *image, const double *step) {
  size_t count = pixels_of(image);
  uint8_t *bytes = image->pixels;
  switch ((int)step[0]) {
    case FLIP: flip(image); break;
    case MOVE: move(image, step + 1, step[7] != 0); break;
    case BRIGHTNESS: brightness(image, step[1]); break;
    case COLOR: (fast() ? colour_fast : colour_plain)(bytes, count, (float)step[1], (float)(1.0 - step[1])); break;
    case CONTRAST: contrast(image, step[1]); break;
    case SHARPNESS: sharpen(image, step[1]); break;
    case POSTERIZE: posterize(bytes, count * 3, (int)step[1]); break;
    case SOLARIZE: solarize(bytes, count * 3, (float)step[1]); break;
    case SOLARIZE_ADD: solarize_add(bytes, count * 3, (int)step[1]); break;
    case AUTO_CONTRAST: auto_contrast(image); break;
    case EQUALIZE: equalize(image); break;
    case INVERT: solarize(bytes, count * 3, 0); break;
    default: erase(image, (int)step[1], (int)step[2], (int)step[3], (int)step[4]);
  }
}

/* Take `count` steps of NUMBERS numbers each, in place. `colour` fills what MOVE leaves empty and ERASE erases.
   0, or 1 for numbers that no step has, or without memory. */
int trainyard_change(uint8_t *pixels, int height, int width, const double *steps, int count, const uint8_t *colour) {
  Image image = {.pixels = pixels, .height = height, .width = width, .colour = colour};
  int copies = 0;
  if (height < 1 || width < 1 || height > LARGEST || width > LARGEST) return 1;
  for (int n = 0; n < count; n++) {
    if (!valid(&image, steps + n * NUMBERS)) return 1;
    copies |= steps[n * NUMBERS] == MOVE || steps[n * NUMBERS] == SHARPNESS;
  }
  if (copies && !(image.copy = malloc(pixels_of(&image) * 3 + 8))) return 1;
  for (int n = 0; n < count; n++) take(&image, steps + n * NUMBERS);
  free(image.copy);
  return 0;
}

/* All of a channel, then the next: `count` pixels. */
static void split_planes(const uint8_t *pixels, size_t count, uint8_t *out) {
  uint8_t *red = out, *green = out + count, *blue = out + 2 * count;
  for (size_t i = 0; i < count; i++) red[i] = pixels[i * 3], green[i] = pixels[i * 3 + 1], blue[i] = pixels[i * 3 + 2];
}

/* trainyard_cut and trainyard_change in one call; with `planar`, `out` gets one channel after the other. */
int trainyard_make(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int height,
                   int width, const double *steps, int count, const uint8_t *colour, int planar, uint8_t *out) {
  size_t size = (size_t)height * width;
  uint8_t *pixels = planar ? malloc(size * 3) : out;
  int failed = !pixels || trainyard_cut(data, bytes, box, bounds, cubic, height, width, pixels) ||
               trainyard_change(pixels, height, width, steps, count, colour);
  if (planar && !failed) split_planes(pixels, size, out);
  if (planar) free(pixels);
  return failed;
}
