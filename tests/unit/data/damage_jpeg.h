/* Damages a JPEG: its bytes, wherever they are, or what it is made of: header segments, and intervals between restart
   markers, which are lost, empty, cut short, repeated or exchanged while the rest stays as a reader wants it. */

#ifndef TRAINYARD_DAMAGE_JPEG_H
#define TRAINYARD_DAMAGE_JPEG_H

#include <string.h>

#include "fuzz.h"

#define MOST_BYTES (4u << 20)
#define MOST_PIECES (1 << 16)
#define MOST_REPEATS 1500 /* of a scan: more than any decoder may take */

enum { DATA = 0, SOF0 = 0xc0, SOF2 = 0xc2, RST0 = 0xd0, RST7 = 0xd7, SOI = 0xd8, EOI = 0xd9, SOS = 0xda, DRI = 0xdd,
       COM = 0xfe };

typedef struct { /* what lies behind a marker, or without one (DATA) behind a scan's header */
  int marker;
  uint8_t *at;
  size_t bytes;
} Piece;

static Piece pieces[MOST_PIECES];
static int count;

static int is_interval(int marker) { return marker == DATA || (marker >= RST0 && marker <= RST7); }
static int is_header(int marker) { return !is_interval(marker) && marker != SOI && marker != EOI; }

static int round_up(int number, int unit) { return (number + unit - 1) / unit; }
static void put(uint8_t *at, int number) { at[0] = (uint8_t)(number >> 8), at[1] = (uint8_t)number; }

static size_t end_of_data(const uint8_t *data, size_t bytes, size_t at) {
  while (at < bytes && (data[at] != 0xff || at + 1 == bytes || !data[at + 1])) at++;
  return at;
}

/* Cut a whole JPEG into pieces. */
static void split(uint8_t *data, size_t bytes) {
  count = 0;
  for (size_t at = 0; at + 1 < bytes && count < MOST_PIECES / 2; count++) {
    Piece *piece = pieces + count;
    int behind_header = count && piece[-1].marker == SOS;
    piece->marker = behind_header ? DATA : data[at + 1];
    piece->at = data + (behind_header ? at : at + 2);
    at = (size_t)(piece->at - data);
    if (is_interval(piece->marker)) at = end_of_data(data, bytes, at);
    else if (is_header(piece->marker)) at += data[at] << 8 | data[at + 1];
    piece->bytes = (size_t)(data + at - piece->at);
  }
}

static size_t join(uint8_t *out) {
  size_t bytes = 0;
  for (int i = 0; i < count && bytes + pieces[i].bytes + 2 <= MOST_BYTES; i++) {
    if (pieces[i].marker) out[bytes++] = 0xff, out[bytes++] = (uint8_t)pieces[i].marker;
    if (pieces[i].bytes) memcpy(out + bytes, pieces[i].at, pieces[i].bytes);
    bytes += pieces[i].bytes;
  }
  return bytes;
}

static void drop(int i) { memmove(pieces + i, pieces + i + 1, sizeof *pieces * (--count - i)); }

/* Repeat some pieces behind them. */
static void repeat_pieces(int first, int many, int times) {
  if (times > (MOST_PIECES - count) / many) times = (MOST_PIECES - count) / many;
  memmove(pieces + first + many * (times + 1), pieces + first + many, sizeof *pieces * (count - first - many));
  for (int n = many; n < many * (times + 1); n++) pieces[first + n] = pieces[first + n - many];
  count += many * times;
}

/* Any piece of a kind, or -1. */
static int choose(int (*fits)(int marker)) {
  int found = -1;
  for (int i = 0, seen = 0; i < count; i++)
    if (fits(pieces[i].marker) && !draw(++seen)) found = i;
  return found;
}

static int first_of(int marker) {
  for (int i = 0; i < count; i++)
    if (pieces[i].marker == marker) return i;
  return -1;
}

static void exchange(int i, int k) {
  Piece one = pieces[i], other = pieces[k];
  pieces[i].at = other.at, pieces[i].bytes = other.bytes, pieces[k].at = one.at, pieces[k].bytes = one.bytes;
}

static void change_interval(void) {
  int i = choose(is_interval), k = choose(is_interval);
  if (i < 0) return;
  switch (draw(6)) {
    case 0: drop(i); break;
    case 1: repeat_pieces(i, 1, 1 + draw(9)); break;
    case 2: exchange(i, k); break;
    case 3: pieces[i].bytes = 0; break;
    case 4: pieces[i].bytes = draw(pieces[i].bytes + 1); break;
    default: pieces[i].at = pieces[k].at, pieces[i].bytes = pieces[k].bytes;
  }
}

static void change_header(void) {
  int i = choose(is_header), k = choose(is_header);
  if (i < 0) return;
  switch (draw(8)) {
    case 0: drop(i); break;
    case 1: repeat_pieces(i, 1, 1); break;
    case 2: exchange(i, k); break;
    default: pieces[i].at[draw(pieces[i].bytes < 24 ? pieces[i].bytes : 24)] = draw(draw(2) ? 256 : 20);
  }
}

/* More metadata than libjpeg's first buffer holds. */
static void comment(void) {
  static uint8_t text[5000];
  put(text, sizeof text);
  memmove(pieces + 2, pieces + 1, sizeof *pieces * (count++ - 1));
  pieces[1] = (Piece){COM, text, sizeof text};
}

/* Number the restart markers as they must be. */
static void renumber(void) {
  for (int i = 0, number = 0; i < count; i++) {
    if (pieces[i].marker == SOS) number = 0;
    if (pieces[i].marker && is_interval(pieces[i].marker)) pieces[i].marker = RST0 + (number++ & 7);
  }
}

/* Let the header claim another size: 0 where there is none. */
static int claim(int height, int width) {
  int frame = first_of(first_of(SOF0) < 0 ? SOF2 : SOF0);
  if (frame < 0) return 0;
  put(pieces[frame].at + 3, height), put(pieces[frame].at + 5, width);
  return frame;
}

static uint32_t most_claimed = 160000000; /* pixels: some are more than any decoder takes */
static void claim_much(void) {
  uint32_t height = 1 + draw(draw(2) ? 65535 : 300), most = most_claimed / (draw(8) ? 4 : 1) / height;
  claim(height, 1 + draw(most < 65535 ? most : 65535));
}

/* Another size and interval, and as many intervals as that takes: of any there is the data, a part of them, or none. */
static void compose(void) {
  static uint8_t length[4];
  Piece any[100];
  int height = 1 + draw(draw(2) ? 16 : 90), width = 1 + draw(draw(2) ? 16 : 90), wide = 1, tall = 1, kinds = 0;
  int interval = 1 + draw(draw(2) ? 3 : 90), harm = draw(6), frame = claim(height, width), scan = first_of(SOS);
  for (int i = scan; i < count && kinds < 100; i++)
    if (i > 0 && is_interval(pieces[i].marker)) any[kinds++] = pieces[i];
  if (!frame || !kinds) return;
  const uint8_t *components = pieces[frame].at + 7;
  for (int c = 0; c < components[0] && components[0] > 1; c++) {
    if (components[2 + 3 * c] >> 4 > wide) wide = components[2 + 3 * c] >> 4;
    if ((components[2 + 3 * c] & 15) > tall) tall = components[2 + 3 * c] & 15;
  }
  put(length, sizeof length), put(length + 2, interval);
  pieces[scan + 1] = pieces[scan], pieces[scan] = (Piece){DRI, length, sizeof length}, count = scan + 2;
  for (int n = round_up(round_up(height, 8 * tall) * round_up(width, 8 * wide), interval); n > 0; n--) {
    Piece *piece = pieces + count++;
    *piece = any[draw(kinds)], piece->marker = piece[-1].marker == SOS ? DATA : RST0;
    if (harm == 1 || (harm == 2 && !draw(8))) piece->bytes = 0;
    if (harm == 3 && !draw(8)) piece->bytes = draw(piece->bytes + 1);
  }
  pieces[count++] = (Piece){.marker = EOI};
}

/* Repeat one scan many times. */
static void repeat_scan(void) {
  int first = -1, end;
  for (int i = 0, seen = 0; i < count; i++)
    if (pieces[i].marker == SOS && !draw(++seen)) first = i;
  if (first < 0) return;
  for (end = first + 1; end < count && is_interval(pieces[end].marker);) end++;
  repeat_pieces(first, end - first, 1 + draw(draw(4) ? MOST_REPEATS : 20));
}

static size_t damage_bytes(uint8_t *data, size_t bytes) {
  switch (draw(8)) {
    case 0: return draw(bytes); /* cut short */
    case 1: for (int n = 1 + draw(20); n > 0; n--) data[draw(bytes)] ^= 1 << draw(8); return bytes;
    case 2: for (int n = 1 + draw(4); n > 0; n--) data[draw(bytes < 700 ? bytes : 700)] = draw(256); return bytes;
    case 3: { /* a piece is missing */
      size_t at = draw(bytes), gone = draw(bytes - at);
      memmove(data + at, data + at + gone, bytes - at - gone);
      return bytes - gone;
    }
    case 4: /* only the first marker is right */
      for (size_t i = 2; i < bytes; i++) data[i] = draw(256);
      return 2 + draw(400);
    case 5: for (size_t i = bytes / 2; i < bytes; i++) data[i] = draw(4) ? data[i] : 0xff; return bytes;
    case 6: { /* a restart marker, or what looks like one, where it may not be, or instead of another */
      uint8_t *at = memchr(data + draw(bytes), 0xff, bytes / 2);
      size_t place = draw(2) && at && at + 1 < data + bytes ? (size_t)(at - data) : draw(bytes - 1);
      data[place] = 0xff, data[place + 1] = draw(4) ? 0xd0 + draw(8) : draw(256);
      return bytes;
    }
    default: return bytes;
  }
}

/* Damage a whole JPEG; `data` and `out` have room for MOST_BYTES. */
static size_t damage(uint8_t *data, size_t bytes, uint8_t *out) {
  split(data, bytes);
  switch (draw(24)) {
    case 0: case 1: case 2: case 3: case 4: case 5: case 6: case 7: compose(); break;
    case 8: case 9: case 10: for (int n = 1 + draw(4); n > 0; n--) change_interval(); break;
    case 11: compose(); /* fall through */
    case 12: case 13: for (int n = 1 + draw(3); n > 0; n--) change_header(); break;
    case 14: repeat_scan(); if (!draw(4)) claim_much(); break;
    case 15: claim_much(); break;
    default: return damage_bytes(out, join(out));
  }
  if (!draw(8)) comment();
  if (draw(8)) renumber();
  bytes = join(out);
  return draw(12) ? bytes : damage_bytes(out, bytes);
}

#endif
