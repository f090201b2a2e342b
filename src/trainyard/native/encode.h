/* Huffman tables made for an image's symbols, and the bytes of a scan with them: see encode.c. */

#ifndef TRAINYARD_ENCODE_H
#define TRAINYARD_ENCODE_H

#include "symbols.h"

typedef struct { /* where bytes go; `full` once some had no room */
  uint8_t *at, *stop;
  int full;
} Output;

typedef struct { /* a table as a file has it */
  uint8_t lengths[17];  /* how many codes have each length */
  uint8_t symbols[256]; /* in the order of their codes */
  int count;            /* of symbols; none: the table is not used */
} Tailored;

typedef struct { /* a code with zeros where the bits behind it go, ones for these alone, and the length of both */
  uint32_t bits;
  uint16_t behind, length;
} Code;

typedef struct {
  Tailored table[4]; /* for DC and AC of table 0, then of table 1 */
  Code code[KINDS];
} Coding;

void output_put(Output *output, const void *from, size_t bytes);

/* Make the shortest codes for the symbols. 1 where no code of 32 bits would do on the way to them. */
int coding_make(Coding *coding, const Symbols *symbols);

/* Write all intervals, with restart markers between them. */
void encode_symbols(Output *output, const Symbols *symbols, const Coding *coding);

#endif
