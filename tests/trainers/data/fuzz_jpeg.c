/* Feeds the decoder broken JPEGs, scans without end, sizes that headers only claim, and any area to resize:
   fuzz_jpeg INPUTS SECONDS SEED LARGE FILE... ends 0 after so many inputs and seconds, and prints how many, unless a
   sanitizer or a signal ends it. The last LARGE files are drawn rarely. Each buffer has exactly the size it must have, so
   that an access beyond it is seen. */

#include "../../../trainers/native/jpeg.c"

#include <time.h>

#define MOST_BYTES (4u << 20)

static uint64_t state;
static uint32_t draw(uint32_t below) { /* xorshift64*, Vigna 2016 */
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return below ? (uint32_t)((state * 2685821657736338717ull) >> 33) % below : 0;
}
static double fraction(void) { return draw(1 << 20) / (double)(1 << 20); }

/* The first of these two bytes at or after `at`, or `bytes`. */
static size_t find(const uint8_t *data, size_t bytes, size_t at, int second) {
  for (; at + 1 < bytes; at++)
    if (data[at] == 0xff && (second ? data[at + 1] == second : data[at + 1] && (data[at + 1] & 0xf8) != 0xd0)) return at;
  return bytes;
}

/* Let the header claim any size. */
static size_t resize_header(uint8_t *data, size_t bytes) {
  size_t at = find(data, bytes, 0, 0xc0);
  if (at == bytes) at = find(data, bytes, 0, 0xc2);
  if (at + 9 > bytes) return bytes;
  uint32_t most = draw(2) ? 65535 : 1u << (1 + draw(15)), height = 1 + draw(most), width = 1 + draw(most);
  data[at + 5] = height >> 8, data[at + 6] = height, data[at + 7] = width >> 8, data[at + 8] = width;
  return bytes;
}

/* Repeat one scan many times; `data` holds MOST_BYTES. */
static size_t repeat_scan(uint8_t *data, size_t bytes) {
  size_t at = 0, count = 0, next;
  for (size_t found = 0; (found = find(data, bytes, found, 0xda)) < bytes; found++)
    if (!draw(++count)) at = found;
  if (!count || at + 2 >= bytes) return bytes;
  next = find(data, bytes, at + 2, 0);
  uint8_t *scan = malloc(next - at);
  memcpy(scan, data + at, next - at);
  size_t length = next - at, times = 1 + draw(draw(4) ? 3 * MAX_SCANS : 20);
  if (times > (MOST_BYTES - bytes) / length) times = (MOST_BYTES - bytes) / length;
  memmove(data + next + times * length, data + next, bytes - next);
  for (size_t n = 0; n < times; n++) memcpy(data + next + n * length, scan, length);
  free(scan);
  return bytes + times * length;
}

static size_t damage(uint8_t *data, size_t bytes) {
  switch (draw(11)) {
    case 9: { /* a restart marker, or what looks like one, where it may not be, or instead of another */
      uint8_t *at = memchr(data + draw(bytes), 0xff, bytes / 2);
      size_t place = draw(2) && at && at + 1 < data + bytes ? (size_t)(at - data) : draw(bytes - 1);
      data[place] = 0xff, data[place + 1] = draw(4) ? 0xd0 + draw(8) : draw(256);
      return bytes;
    }
    case 0: return draw(bytes); /* cut short */
    case 1: for (int n = 1 + draw(20); n > 0; n--) data[draw(bytes)] ^= 1 << draw(8); return bytes;
    case 2: for (int n = 1 + draw(4); n > 0; n--) data[draw(bytes < 700 ? bytes : 700)] = draw(256); return bytes;
    case 3: { /* a piece is missing */
      size_t at = draw(bytes), gone = draw(bytes - at);
      memmove(data + at, data + at + gone, bytes - at - gone);
      return bytes - gone;
    }
    case 4: for (size_t i = 2; i < bytes; i++) data[i] = draw(256); return 2 + draw(400); /* only the first marker is right */
    case 5: for (size_t i = bytes / 2; i < bytes; i++) data[i] = draw(4) ? data[i] : 0xff; return bytes;
    case 6: return resize_header(data, bytes);
    case 7: return repeat_scan(data, bytes);
    case 8: return repeat_scan(data, resize_header(data, bytes));
    default: return bytes;
  }
}

static uint8_t *load(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(3);
  uint8_t *data = malloc(MOST_BYTES);
  *bytes = fread(data, 1, MOST_BYTES, file);
  fclose(file);
  return data;
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

static uint64_t resized;
static void fuzz_resize(void) {
  int most = draw(20) ? 200 : 3000, size[2] = {1 + draw(most), 1 + draw(most)}, bounds[4];
  int tall = 1 + draw(draw(20) ? 100 : 1500), wide = 1 + draw(draw(20) ? 100 : 1500);
  double box[4];
  choose_area(size, box, bounds);
  size_t bytes = (size_t)size[0] * size[1] * 3;
  uint8_t *pixels = malloc(bytes), *out = malloc((size_t)tall * wide * 3);
  memset(pixels, draw(256), bytes);
  for (int n = 0; n < 64; n++) pixels[draw(bytes)] = draw(256);
  trainyard_vectors(256 * (int)draw(3));
  resized += !trainyard_resize(pixels, size[0], size[1], box, bounds, draw(2), tall, wide, out);
  free(out);
  free(pixels);
}

static uint64_t sized, good, endless, large, rewritten;
static void fuzz_jpeg(const char *path) {
  size_t bytes, scans = 0;
  uint8_t *whole = load(path, &bytes);
  bytes = damage(whole, bytes);
  uint8_t *data = malloc(bytes ? bytes : 1);
  memcpy(data, whole, bytes);
  free(whole);
  int size[3] = {1 + draw(300), 1 + draw(300)}, tall = 1 + draw(80), wide = 1 + draw(80), bounds[4];
  int known = !trainyard_size(data, bytes, size);
  sized += known;
  if (known && (uint64_t)size[0] * size[1] > MAX_PIXELS) abort();
  large += known && (uint64_t)size[0] * size[1] > 16000000;
  for (size_t at = 0; (at = find(data, bytes, at, 0xda)) < bytes; at++) scans++;
  endless += scans > MAX_SCANS;
  double box[4];
  choose_area(size, box, bounds);
  if (!draw(50)) tall = 1 + draw(1500), wide = 1 + draw(1500);
  size_t pixels = (size_t)tall * wide * 3, room = draw(8) ? 2 * bytes : draw(2000);
  uint8_t *out = malloc(pixels), *other = malloc(pixels), *written = malloc(room ? room : 1);
  int cubic = draw(2);
  trainyard_vectors(256 * (int)draw(3));
  int failed = trainyard_cut(data, bytes, box, bounds, cubic, tall, wide, out);
  good += !failed;
  trainyard_ways(LIBJPEG); /* what reads segments gives what libjpeg gives, of damaged files, too */
  if (trainyard_cut(data, bytes, box, bounds, cubic, tall, wide, other) != failed) abort();
  if (!failed && memcmp(out, other, pixels)) abort();
  if (!draw(4) && !trainyard_rewrite(data, bytes, draw(2) * draw(9), written, &room)) {
    trainyard_ways(WINDOW);
    if (trainyard_cut(written, room, box, bounds, cubic, tall, wide, out) != failed) abort();
    if (!failed && memcmp(out, other, pixels)) abort();
    rewritten++;
  }
  trainyard_ways(BOTH);
  free(out), free(other), free(written), free(data);
}

int main(int count, char **arguments) {
  uint64_t done = 0;
  int least = atoi(arguments[1]), rare = atoi(arguments[4]), often = count - 5 - rare;
  state = strtoull(arguments[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
  for (time_t end = time(NULL) + atoi(arguments[2]); done < (uint64_t)least || time(NULL) < end; done++) {
    if (!draw(3)) fuzz_resize();
    else fuzz_jpeg(arguments[5 + (draw(60) ? draw(often) : often + draw(rare))]);
  }
  printf("%llu inputs, %llu areas resized, %llu headers read, %llu of them of more than 16 Mpixel, %llu pictures decoded, "
         "%llu with too many scans, %llu rewritten\n", (unsigned long long)done, (unsigned long long)resized, (unsigned long long)sized,
         (unsigned long long)large, (unsigned long long)good, (unsigned long long)endless,
         (unsigned long long)rewritten);
  return 0;
}
