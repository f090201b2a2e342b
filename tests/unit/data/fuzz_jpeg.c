/* Feeds the library broken JPEGs, scans without end, sizes that headers only claim, areas to resize and bytes to sum:
   fuzz_jpeg INPUTS SECONDS SEED LARGE FILE... ends 0 after so many inputs and seconds, and prints how many and a digest
   of all results, unless a sanitizer, valgrind or a signal ends it. The last LARGE files are drawn rarely; where there
   are none, nothing else is large either. What segments are read of is kept in the folder TAKEN (environment), if any.
   Each buffer has exactly the size it must have, so that an access beyond it is seen. */

#include "../../../src/trainyard/native/jpeg.c"

#include "damage_jpeg.h"
#include "random_jpeg.h"
#include "reference_rewrite.h"

/* A file, damaged; without a path any baseline JPEG, and that not always. */
static uint8_t *load(const char *path, size_t *bytes) {
  static uint8_t whole[MOST_BYTES], damaged[MOST_BYTES];
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (path && !file) exit(3);
  *bytes = file ? fread(whole, 1, MOST_BYTES, file) : random_jpeg(whole);
  if (file) fclose(file);
  int harm = path || !draw(4);
  if (harm) *bytes = damage(whole, *bytes, damaged);
  uint8_t *data = malloc(*bytes ? *bytes : 1);
  return memcpy(data, harm ? damaged : whole, *bytes);
}

/* An area of a picture of this size: most often inside, in whole pixels or not; sometimes anywhere near. */
static void choose_area(const int *size, double *box, int *bounds) {
  int near = !draw(4), whole = draw(2);
  for (int axis = 0; axis < 2; axis++) {
    double extent = size[1 - axis], length = near ? 1e-3 + 3 * extent * fraction() : 1 + draw((int)extent);
    double start = near ? extent * (4 * fraction() - 2) : draw((int)(extent - length) + 1);
    if (!whole && !near && start + length < extent) start += fraction();
    box[axis] = start, box[axis + 2] = length;
    int low = start < 0 ? 0 : start > extent ? (int)extent : (int)start;
    double end = start + length > extent ? extent : start + length;
    bounds[axis] = draw(2) ? low : 0;
    bounds[axis + 2] = draw(2) && end > 0 ? (int)(end + 0.999) : (int)extent;
  }
}

static int longest = 3000; /* side of pixels to resize */
static unsigned long long resized, summed;
static void fuzz_resize(void) {
  int most = draw(20) ? 200 : longest, size[2] = {1 + draw(most), 1 + draw(most)}, bounds[4];
  int tall = 1 + draw(draw(20) ? 100 : longest / 2), wide = 1 + draw(draw(20) ? 100 : longest / 2);
  double box[4];
  choose_area(size, box, bounds);
  size_t bytes = (size_t)size[0] * size[1] * 3;
  uint8_t *pixels = malloc(bytes), *out = malloc((size_t)tall * wide * 3);
  memset(pixels, draw(256), bytes);
  for (int n = 0; n < 64; n++) pixels[draw(bytes)] = draw(256);
  trainyard_vectors(256 * (int)draw(3));
  int failed = trainyard_resize(pixels, size[0], size[1], box, bounds, draw(2), tall, wide, out);
  if (!failed) look_at(out, (size_t)tall * wide * 3);
  resized += !failed;
  free(out);
  free(pixels);
}

/* A message with its own CRC behind it, least byte first, has the same CRC whatever it says. */
static void fuzz_sum(void) {
  size_t bytes = draw(draw(4) ? 200 : 70000), at = draw(16);
  uint8_t *data = malloc(at + bytes + 4), *message = data + at;
  for (size_t i = 0; i < bytes; i++) message[i] = draw(256);
  uint32_t sum = trainyard_crc32(message, bytes);
  for (int n = 0; n < 4; n++) message[bytes + n] = (uint8_t)(sum >> 8 * n);
  if (trainyard_crc32(message, bytes + 4) != 0x2144df1c) abort();
  summed++;
  free(data);
}

static unsigned long long sized, good, windows, endless, large, rewritten, refused;

/* What reads segments, if it takes a file, gives what libjpeg gives, of damaged files, too. Whether both took it. */
static int both(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int tall, int wide,
                const uint8_t *expected, uint8_t *out) {
  trainyard_ways(WINDOW);
  int took = !trainyard_cut(data, bytes, box, bounds, cubic, tall, wide, out);
  if (took && (!expected || memcmp(out, expected, (size_t)tall * wide * 3))) abort();
  return took;
}

/* Rewriting gives libjpeg's bytes, or refuses for libjpeg's reason, unless there is little room. Whether it was done. */
static int rewrite_both(const uint8_t *data, size_t bytes, uint8_t *written, size_t *room) {
  int interval = draw(2) * draw(9), enough = *room >= 2 * bytes;
  size_t length = *room + 16; /* libjpeg needs a byte that it does not fill */
  uint8_t *expected = malloc(length);
  int code = trainyard_rewrite(data, bytes, interval, written, room);
  int other = reference_rewrite(data, bytes, interval, expected, &length);
  if (code != other && (enough || (code != 5 && other != 5))) abort();
  if (!code && (other || length != *room || memcmp(expected, written, length))) abort();
  free(expected);
  refused += !!code;
  return !code;
}

static void keep(const uint8_t *data, size_t bytes) {
  char path[4096];
  const char *folder = getenv("TAKEN");
  if (!folder) return;
  snprintf(path, sizeof path, "%s/%llu.jpg", folder, windows);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) exit(3);
}

static void fuzz_jpeg(const char *path) {
  size_t bytes, scans = 0;
  uint8_t *data = load(path, &bytes);
  int size[3] = {1 + draw(300), 1 + draw(300)}, tall = 1 + draw(80), wide = 1 + draw(80), cubic = draw(2), bounds[4];
  int known = !trainyard_size(data, bytes, size);
  sized += known;
  if (known && (uint64_t)size[0] * size[1] > MAX_PIXELS) abort();
  large += known && (uint64_t)size[0] * size[1] > 16000000;
  for (size_t at = 0; at + 1 < bytes; at++) scans += data[at] == 0xff && data[at + 1] == SOS;
  endless += scans > MAX_SCANS;
  double box[4];
  choose_area(size, box, bounds);
  if (!draw(50)) tall = 1 + draw(longest / 2), wide = 1 + draw(longest / 2);
  size_t pixels = (size_t)tall * wide * 3, room = draw(8) ? 2 * bytes : draw(2000);
  uint8_t *expected = malloc(pixels), *out = malloc(pixels), *written = malloc(room ? room : 1);
  trainyard_vectors(256 * (int)draw(3));
  trainyard_ways(LIBJPEG);
  int failed = trainyard_cut(data, bytes, box, bounds, cubic, tall, wide, expected);
  if (!failed) look_at(expected, pixels);
  good += !failed;
  if (both(data, bytes, box, bounds, cubic, tall, wide, failed ? NULL : expected, out)) keep(data, bytes), windows++;
  if ((!path || !draw(4)) && rewrite_both(data, bytes, written, &room)) {
    look_at(written, room);
    if (both(written, room, box, bounds, cubic, tall, wide, failed ? NULL : expected, out) == failed) abort();
    rewritten++;
  }
  free(expected), free(out), free(written), free(data);
}

static int often, rare;
static void fuzz(char **files) {
  int kind = draw(24);
  if (kind < 7) fuzz_resize();
  else if (kind == 7) fuzz_sum();
  else if (kind == 8) fuzz_jpeg(NULL);
  else fuzz_jpeg(files[1 + (!rare || draw(60) ? draw(often) : often + draw(rare))]);
}

int main(int words, char **arguments) {
  rare = atoi(arguments[4]), often = words - 5 - rare;
  if (!rare) most_claimed = 300000, longest = 300;
  unsigned long long done = repeat(arguments, fuzz);
  printf("%llu inputs, %llu areas resized, %llu sums, %llu headers read, %llu of them of more than 16 Mpixel, "
         "%llu pictures decoded, %llu also by segments, %llu with too many scans, %llu rewritten, %llu refused; digest %llx\n", done,
         resized, summed, sized, large, good, windows, endless, rewritten, refused, (unsigned long long)digest);
  return 0;
}
