/* What sources call of each other, and tests of the library; each is described where it is defined. */

#ifndef TRAINYARD_LIBRARY_H
#define TRAINYARD_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

extern int widest_vectors; /* bits; trainyard_vectors sets it, for tests: to leave out what only some machines have */
void trainyard_vectors(int bits);

int trainyard_cut(const uint8_t *data, size_t bytes, const double *box, const int *bounds, int cubic, int size_y,
                  int size_x, uint8_t *out);
int trainyard_resize(const uint8_t *pixels, int height, int width, const double *box, const int *bounds, int cubic,
                     int size_y, int size_x, uint8_t *out);
int trainyard_rewrite(const uint8_t *data, size_t bytes, int interval, uint8_t *out, size_t *room);
int trainyard_has_crc32(void);
uint32_t trainyard_crc32(const uint8_t *data, size_t bytes);
int trainyard_idle(void);

#endif
