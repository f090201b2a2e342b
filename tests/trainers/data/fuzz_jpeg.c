/* Feeds broken JPEGs to the decoder: fuzz_jpeg SECONDS SEED FILE... ends 0 and prints how many, unless a sanitizer or a
   signal ends it. Each input is a file with random damage; each output buffer has exactly the size it must have. */

#include "../../../trainers/native/jpeg.c"

#include <time.h>

static uint64_t state;
static uint32_t draw(uint32_t below) { /* xorshift64*, Vigna 2016 */
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return below ? (uint32_t)((state * 2685821657736338717ull) >> 33) % below : 0;
}

static size_t damage(uint8_t *data, size_t bytes) {
  switch (draw(7)) {
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
  uint64_t done = 0, good = 0, sized = 0;
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
    uint8_t *out = malloc((size_t)tall * wide * 3);
    trainyard_plain(draw(2));
    if (!trainyard_cut(data, bytes, box, draw(2) ? inner : outer, cubic, tall, wide, out)) good++;
    free(out);
    free(data);
  }
  printf("%llu inputs, %llu headers read, %llu pictures decoded\n", (unsigned long long)done, (unsigned long long)sized,
         (unsigned long long)good);
  return 0;
}
