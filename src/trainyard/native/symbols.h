/* What a scan's Huffman codes stand for, as a list of numbers: see symbols.c. */

#ifndef TRAINYARD_SYMBOLS_H
#define TRAINYARD_SYMBOLS_H

#include "scan.h"

/* A number of the list: bits 0-7 the symbol (T.81, F.1.2), bit 8 whether it is one for AC, bit 9 which of two tables
   it is of; from bit 16 on the bits that follow its code, as many as the symbol says, and any others above. */
#define KINDS 1024 /* of symbols, by bits 0-9 */

typedef struct { /* how blocks make an image, by component where there are three numbers */
  int components, across, down; /* MCUs */
  int interval;                 /* MCUs between the restart markers that are to be written */
  int wide[3], tall[3];         /* blocks of an MCU */
  int columns[3], rows[3];      /* blocks of the image: those beyond are padding, of which no pixel is seen */
  int table[3];                 /* which of two */
} Grid;

typedef struct {
  const Grid *grid;
  uint32_t *list;
  size_t count;
  size_t *starts; /* where the symbols of each interval begin, and where those of the last one end */
  int intervals;
  int last[3];    /* DC values to predict from */
} Symbols;

/* Whether a block of an MCU, the i-th of its component, is padding. */
static inline int is_padding(const Grid *grid, int c, int i, int column, int row) {
  return column * grid->wide[c] + i % grid->wide[c] >= grid->columns[c] ||
         row * grid->tall[c] + i / grid->wide[c] >= grid->rows[c];
}

/* Make room for an image. 1 where memory is short; `symbols_close` in any case. */
int symbols_open(Symbols *symbols, const Grid *grid);
void symbols_close(Symbols *symbols);

/* Read all of a scan, of which all was chosen. 1 where it is damaged, holds more than its MCUs, or has numbers that no
   baseline JPEG with this interval can have. */
int symbols_read(Symbols *symbols, const Scan *scan);

/* Add blocks one after the other, or none (NULL) for padding, from MCU 0 on. 1 where no baseline JPEG has the numbers. */
void symbols_begin_mcu(Symbols *symbols, int mcu);
int symbols_add(Symbols *symbols, int component, const int16_t *block);
void symbols_end(Symbols *symbols);

#endif
