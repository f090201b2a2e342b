/* Reads the coefficients of a baseline JPEG's MCUs, in any area of it.

   A JPEG's symbols have no fixed length, and each DC value is the difference to the one before: an MCU can only be read
   after all others before it. Restart markers (ITU-T T.81, B.2.4.4 and E.1.4) end that: behind each one the data begin
   at a byte, with DC predictions of zero. So the markers are looked for first, and only the segments that hold wanted
   MCUs are read. A file without markers is one segment, which is read from its start.

   Nothing is guessed. Whatever is not exactly as the standard says (markers out of order, a code that no table has, a
   segment that ends too early) is refused, and the caller takes libjpeg, which knows what to make of damage. */

#include "scan.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PIXELS 128000000ull /* as in trainyard/data/limits.py */
#define MOST_AHEAD 64 /* MCUs of an interval that is read as a whole, two such ones at a time */
#define NUMBERS 64    /* of a block */

static int round_up(int number, int unit) { return (number + unit - 1) / unit; }

static int take_frame(Scan *scan, const uint8_t *from, size_t bytes) {
  if (scan->components || bytes < 6 || from[0] != 8) return 1;
  int components = from[5], tall = 1, wide = 1;
  scan->height = from[1] << 8 | from[2];
  scan->width = from[3] << 8 | from[4];
  if ((components != 1 && components != 3) || bytes != 6 + 3 * (size_t)components) return 1;
  if (!scan->height || !scan->width || (uint64_t)scan->height * scan->width > MOST_PIXELS) return 1;
  for (int c = 0; c < components; c++) {
    const uint8_t *one = from + 6 + 3 * c;
    int h = one[1] >> 4, v = one[1] & 15;
    if (h < 1 || h > 4 || v < 1 || v > 4) return 1;
    scan->identity[c] = one[0], scan->sampling[c] = one[1];
    if (h > wide) wide = h;
    if (v > tall) tall = v;
    for (int n = components == 1 ? 1 : h * v; n > 0; n--) {
      if (scan->unit.blocks == MOST_BLOCKS) return 1;
      scan->unit.component[scan->unit.blocks++] = c;
    }
  }
  scan->components = components;
  scan->unit_x = 8 * wide, scan->unit_y = 8 * tall;
  scan->mcu_x = components == 1 ? 8 : scan->unit_x, scan->mcu_y = components == 1 ? 8 : scan->unit_y;
  scan->across = round_up(scan->width, scan->mcu_x), scan->down = round_up(scan->height, scan->mcu_y);
  return 0;
}

/* The one scan must hold all components, whole and in the frame's order. */
static int take_scan(Scan *scan, const uint8_t *from, size_t bytes) {
  int count = scan->components;
  if (!count || bytes != 4 + 2 * (size_t)count || from[0] != count) return 1;
  for (int c = 0; c < count; c++) {
    int dc = from[2 + 2 * c] >> 4, ac = from[2 + 2 * c] & 15;
    if (from[1 + 2 * c] != scan->identity[c] || dc > 3 || ac > 3) return 1;
    if (!scan->dc[dc].known || !scan->ac[ac].known) return 1;
    for (int b = 0; b < scan->unit.blocks; b++)
      if (scan->unit.component[b] == c) scan->unit.dc[b] = scan->dc + dc, scan->unit.ac[b] = scan->ac + ac;
  }
  const uint8_t *rest = from + 1 + 2 * count;
  return rest[0] != 0 || rest[1] != 63 || rest[2] != 0;
}

enum { APP0 = 0xe0, APP14 = 0xee, APP15 = 0xef, COM = 0xfe, DQT = 0xdb, DHT = 0xc4, DRI = 0xdd, SOF0 = 0xc0, SOF1 = 0xc1,
       SOS = 0xda, RST0 = 0xd0, RST7 = 0xd7, EOI = 0xd9 };

static int take_segment(Scan *scan, int marker, const uint8_t *from, size_t bytes) {
  switch (marker) {
    case DHT: return huffman_tables(scan->dc, scan->ac, from, bytes);
    case SOF0: case SOF1: scan->size_at = scan->header_bytes + 5; return take_frame(scan, from, bytes);
    case SOS: return take_scan(scan, from, bytes);
    case DRI: if (bytes == 2) scan->interval = from[0] << 8 | from[1]; return bytes != 2;
    default: return !(marker == DQT || (marker >= APP0 && marker <= APP15) || marker == COM);
  }
}

static int read_header(Scan *scan, const uint8_t *data, size_t bytes) {
  if (bytes < 4 || data[0] != 0xff || data[1] != 0xd8) return 1;
  memcpy(scan->header, data, 2);
  scan->header_bytes = 2;
  for (size_t at = 2; at + 4 <= bytes;) {
    int marker = data[at + 1];
    size_t length = (size_t)(data[at + 2] << 8 | data[at + 3]);
    if (data[at] != 0xff || length < 2 || at + 2 + length > bytes) return 1;
    if (take_segment(scan, marker, data + at + 4, length - 2)) return 1;
    /* APP0 and APP14 say what the components mean; other metadata libjpeg would skip, and it gets no intervals */
    if ((marker < APP0 || marker == APP0 || marker == APP14) && marker != DRI) {
      memcpy(scan->header + scan->header_bytes, data + at, length + 2);
      scan->header_bytes += length + 2;
    }
    at += length + 2;
    if (marker == SOS) {
      scan->data = data + at, scan->stop = data + bytes;
      return 0;
    }
  }
  return 1;
}

int scan_open(Scan *scan, const uint8_t *data, size_t bytes) {
  memset(scan, 0, sizeof *scan);
  /* a header is small as a rule; where it is not, `header` is as long as the file, which it cannot exceed */
  scan->header = malloc(bytes + 2);
  scan->dc = malloc(8 * sizeof(Table));
  scan->ac = scan->dc ? scan->dc + 4 : NULL;
  for (int k = 0; scan->dc && k < 8; k++) scan->dc[k].known = 0;
  if (!scan->header || !scan->dc || read_header(scan, data, bytes)) return 1;
  int all = scan->across * scan->down;
  if (!scan->interval || scan->interval > all) scan->interval = all;
  scan->count = round_up(all, scan->interval);
  return scan->count > (scan->stop - scan->data) / 2; /* a header that claims more than there is */
}

void scan_close(Scan *scan) {
  free(scan->header);
  free(scan->dc);
  free(scan->bits);
  free(scan->segments);
  free(scan->store);
  memset(scan, 0, sizeof *scan);
}

/* Mark the segments that hold chosen MCUs. */
static void mark_wanted(Scan *scan, int right, int bottom) {
  for (int row = scan->top; row < bottom; row++) {
    int first = (row * scan->across + scan->left) / scan->interval;
    int last = (row * scan->across + right - 1) / scan->interval;
    for (int k = first; k <= last; k++) scan->segments[k].wanted = 1;
  }
}

/* Copy wanted segments to `bits`, without the zeros that are stuffed behind 0xff; check every marker. */
static int gather(Scan *scan) {
  const uint8_t *from = scan->data;
  uint8_t *to = scan->bits;
  int k = 0;
  scan->segments[0].start = 0;
  for (;;) {
    const uint8_t *found = memchr(from, 0xff, (size_t)(scan->stop - from));
    if (!found || found + 1 >= scan->stop) return 1; /* cut short: no EOI */
    size_t bytes = (size_t)(found - from) + (found[1] == 0);
    if (scan->segments[k].wanted) {
      memcpy(to, from, bytes);
      to += bytes;
    }
    from = found + 2;
    if (found[1] == 0) continue;
    scan->segments[k].end = (size_t)(to - scan->bits);
    if (found[1] == EOI) break;
    if (found[1] < RST0 || found[1] > RST7 || found[1] - RST0 != (k & 7) || ++k == scan->count) return 1;
    scan->segments[k].start = (size_t)(to - scan->bits);
  }
  memset(to, 0, PADDING);
  return k != scan->count - 1;
}

int scan_choose(Scan *scan, int left, int top, int right, int bottom) {
  if (left < 0 || top < 0 || left >= right || top >= bottom || right > scan->across || bottom > scan->down) return 1;
  scan->left = left, scan->top = top, scan->wide = right - left;
  scan->segments = calloc((size_t)scan->count, sizeof(Segment));
  scan->bits = malloc((size_t)(scan->stop - scan->data) + PADDING);
  int mcus = scan->interval > MOST_AHEAD ? 1 : 2 * scan->interval;
  scan->store = calloc((size_t)mcus * scan->unit.blocks * NUMBERS, sizeof *scan->store);
  if (!scan->segments || !scan->bits || !scan->store) return 1;
  mark_wanted(scan, right, bottom);
  scan->stored[0] = scan->stored[1] = -1;
  return gather(scan);
}

void scan_enter(const Scan *scan, Lane *lane, int segment) {
  const Segment *found = scan->segments + segment;
  lane_start(lane, &scan->unit, scan->bits + found->start, scan->bits + found->end);
}

/* The first MCU behind the last wanted one of a segment that holds some; some more where the window ends within it. */
static int end_of_wanted(const Scan *scan, int segment) {
  int all = scan->across * scan->down, end = (segment + 1) * scan->interval, right = scan->left + scan->wide;
  int last = (end < all ? end : all) - 1, row = last / scan->across, column = last % scan->across;
  if (column >= right) return row * scan->across + right;
  return column < scan->left ? (row - 1) * scan->across + right : last + 1;
}

/* Make a lane read the next segment with wanted MCUs into its half of `store`. */
static int ask_for_segment(Scan *scan, int which, int segment) {
  while (segment < scan->count && !scan->segments[segment].wanted) segment++;
  scan->stored[which] = segment;
  if (segment == scan->count) return 0;
  Lane *lane = scan->lane + which;
  int mcus = end_of_wanted(scan, segment) - segment * scan->interval;
  int16_t *half = scan->store + (size_t)which * scan->interval * scan->unit.blocks * NUMBERS;
  memset(half, 0, (size_t)mcus * scan->unit.blocks * NUMBERS * sizeof *half);
  scan_enter(scan, lane, segment);
  return lane_ask(lane, mcus, half, NUMBERS);
}

/* Short intervals: read two segments at a time. */
static int read_segments(Scan *scan, int segment) {
  if (ask_for_segment(scan, 0, segment) || ask_for_segment(scan, 1, segment + 1)) return 1;
  return lanes_read(scan->lane, scan->lane + 1);
}

/* Long ones, or no markers: read what comes before the MCU, which is not kept, and the MCU. */
static int read_up_to(Scan *scan, int segment, int wanted) {
  Lane *lane = scan->lane;
  if (segment != scan->stored[0]) {
    scan->stored[0] = segment;
    scan->next = segment * scan->interval;
    scan_enter(scan, lane, segment);
  }
  if (lane_ask(lane, wanted - scan->next, scan->store, 0) || lane_read(lane)) return 1;
  memset(scan->store, 0, (size_t)scan->unit.blocks * NUMBERS * sizeof *scan->store);
  scan->next = wanted + 1;
  return lane_ask(lane, 1, scan->store, NUMBERS) || lane_read(lane);
}

int scan_read(Scan *scan, int n, int16_t (**blocks)[NUMBERS]) {
  int wanted = (scan->top + n / scan->wide) * scan->across + scan->left + n % scan->wide;
  int segment = wanted / scan->interval, mcu = 0;
  if (scan->interval > MOST_AHEAD) {
    if (read_up_to(scan, segment, wanted)) return 1;
  } else {
    if (segment != scan->stored[0] && segment != scan->stored[1] && read_segments(scan, segment)) return 1;
    mcu = wanted % scan->interval + (segment == scan->stored[1]) * scan->interval;
  }
  const int16_t *from = scan->store + (size_t)mcu * scan->unit.blocks * NUMBERS;
  for (int b = 0; blocks && b < scan->unit.blocks; b++) memcpy(*blocks[b], from + b * NUMBERS, sizeof **blocks);
  return 0;
}
