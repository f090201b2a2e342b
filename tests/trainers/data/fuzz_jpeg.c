/* Feeds broken JPEGs to the decoder: fuzz_jpeg SECONDS SEED FILE... ends 0 and prints how many, unless a sanitizer or a
   signal ends it. Each input is a file with random damage; each output buffer has exactly the size it must have. */

#include "../../../trainers/native/jpeg.c"

#include <time.h>

int trainyard_rewrite(const uint8_t *data, size_t bytes, int interval, uint8_t *out, size_t *room);

static uint64_t state;
static uint32_t draw(uint32_t below) { /* xorshift64*, Vigna 2016 */
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return below ? (uint32_t)((state * 2685821657736338717ull) >> 33) % below : 0;
}

static size_t damage(uint8_t *data, size_t bytes) {
  switch (draw(8)) {
    case 6: { /* a restart marker, or what looks like one, where it may not be, or instead of another */
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
    default: return bytes;
  }
}

static uint8_t *load(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(3);
  uint8_t *data = malloc(1 << 20);
  *bytes = fread(data, 1, 1 << 20, file);
  fclose(file);
  return data;
}

int main(int count, char **arguments) {
  uint64_t done = 0, good = 0, sized = 0, rewritten = 0;
  state = strtoull(arguments[2], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
  for (time_t end = time(NULL) + atoi(arguments[1]); time(NULL) < end; done++) {
    size_t bytes;
    uint8_t *whole = load(arguments[3 + draw(count - 3)], &bytes);
    bytes = damage(whole, bytes);
    uint8_t *data = malloc(bytes ? bytes : 1); /* so that a read beyond the end is seen */
    memcpy(data, whole, bytes);
    free(whole);
    int size[2] = {1 + draw(300), 1 + draw(300)}, tall = 1 + draw(80), wide = 1 + draw(80), cubic = draw(2);
    if (!trainyard_size(data, bytes, size)) sized++;
    double height = 1 + draw(size[0]), width = 1 + draw(size[1]);
    double top = draw(size[0] - (int)height + 1), left = draw(size[1] - (int)width + 1);
    double box[4] = {left, top, width, height};
    int inner[4] = {left, top, left + width, top + height}, outer[4] = {0, 0, size[1], size[0]};
    size_t pixels = (size_t)tall * wide * 3, room = draw(8) ? 2 * bytes : draw(2000);
    uint8_t *out = malloc(pixels), *other = malloc(pixels), *written = malloc(room ? room : 1);
    const int *bounds = draw(2) ? inner : outer;
    trainyard_plain(draw(2));
    int failed = trainyard_cut(data, bytes, box, bounds, cubic, tall, wide, out);
    trainyard_ways(LIBJPEG); /* where the file is damaged, too, the pixels are libjpeg's */
    if (trainyard_cut(data, bytes, box, bounds, cubic, tall, wide, other) != failed) abort();
    if (!failed && memcmp(out, other, pixels)) abort();
    good += !failed;
    if (draw(4) == 0 && !trainyard_rewrite(data, bytes, draw(2) * draw(9), written, &room)) {
      trainyard_ways(WINDOW);
      if (trainyard_cut(written, room, box, bounds, cubic, tall, wide, out) != failed) abort();
      if (!failed && memcmp(out, other, pixels)) abort();
      rewritten++;
    }
    trainyard_ways(BOTH);
    free(out), free(other), free(written), free(data);
  }
  printf("%llu inputs, %llu headers read, %llu pictures decoded, %llu rewritten\n", (unsigned long long)done,
         (unsigned long long)sized, (unsigned long long)good, (unsigned long long)rewritten);
  return 0;
}
