/* Takes any steps on images of any size, most of them valid, with and without vectors, whose bits must be equal:
   fuzz_augment INPUTS SECONDS SEED ends 0 after so many inputs and seconds unless a sanitizer, valgrind or a signal ends
   it, and prints how many were taken, refused, and made from a JPEG, how often each step was taken, and a digest of all
   results. Each buffer has exactly the size it must have, so that an access beyond it is seen. */

#include "../../../src/trainyard/native/augment.c"

#include <stdio.h>

#include <jpeglib.h>

#include "fuzz.h"

static double any_number(void) {
  static const double odd[] = {0.0 / 0.0, 1.0 / 0.0, -1.0 / 0.0, 1e300, -1e300, 1e-300, -0.0, 2147483648.0, -2147483649.0,
                               65536, 16, 17, 1000, 1001, 1048576, -1048577, 255, 256};
  return draw(3) ? (fraction() - 0.5) * (draw(2) ? 4 : 4000) : odd[draw(sizeof odd / sizeof *odd)];
}

static void choose_move(double *step, int height, int width) {
  for (int n = 1; n < 7; n++) step[n] = (fraction() - 0.5) * (n % 3 ? 4 : 3 * (height + width));
  if (draw(2)) step[1] = step[5] = 1, step[draw(2) ? 2 : 4] = 0, step[4] = 0; /* a shift or a shear of rows */
  if (!draw(4)) step[3] = draw(width), step[6] = -(double)draw(height);
  if (!draw(8)) for (int n = 1; n < 7; n++) step[n] = draw(2) ? (n % 3 ? 16 : 1 << 20) : -(n % 3 ? 16 : 1 << 20);
  step[7] = draw(2);
}

static void choose_step(double *step, int height, int width) {
  int which = draw(ERASE + 1);
  memset(step, 0, NUMBERS * sizeof *step);
  step[0] = which, step[1] = fraction() * 3 - 0.5;
  if (which == MOVE) choose_move(step, height, width);
  if (which == POSTERIZE) step[1] = draw(9);
  if (which == SOLARIZE) step[1] = fraction() * 270 - 5;
  if (which == SOLARIZE_ADD) step[1] = draw(256);
  if (which == ERASE) {
    step[3] = draw(height + 1), step[4] = draw(width + 1);
    step[1] = draw(height - (int)step[3] + 1), step[2] = draw(width - (int)step[4] + 1);
  }
  if (!draw(5)) step[draw(NUMBERS)] = any_number();
}

static unsigned long long each[ERASE + 1], made, refusals;

/* An image that is decoded and changed in one call is the one that is decoded and then changed. */
static void check_made(const double *steps, int count, const uint8_t *colour) {
  static uint8_t *jpeg;
  static unsigned long bytes;
  struct jpeg_compress_struct out;
  struct jpeg_error_mgr errors;
  int height = 1 + draw(40), width = 1 + draw(40), planar = draw(2), bounds[4] = {0, 0, width, height};
  size_t size = (size_t)height * width * 3;
  uint8_t *pixels = malloc(size), *other = malloc(size);
  double box[4] = {0, 0, width, height};
  out.err = jpeg_std_error(&errors);
  jpeg_create_compress(&out);
  jpeg = NULL, bytes = 0;
  jpeg_mem_dest(&out, &jpeg, &bytes);
  out.image_width = width, out.image_height = height, out.input_components = 3, out.in_color_space = JCS_RGB;
  jpeg_set_defaults(&out);
  jpeg_start_compress(&out, TRUE);
  for (size_t i = 0; i < size; i++) pixels[i] = draw(256);
  for (JSAMPROW row = pixels; out.next_scanline < out.image_height; row += width * 3) jpeg_write_scanlines(&out, &row, 1);
  jpeg_finish_compress(&out);
  jpeg_destroy_compress(&out);
  if (trainyard_cut(jpeg, bytes, box, bounds, 0, height, width, pixels)) abort();
  int refused = trainyard_change(pixels, height, width, steps, count, colour);
  if (trainyard_make(jpeg, bytes, box, bounds, 0, height, width, steps, count, colour, planar, other) != refused) abort();
  for (size_t i = 0; !refused && i < size; i++)
    if (other[planar ? i % 3 * (size / 3) + i / 3 : i] != pixels[i]) abort();
  if (!trainyard_make(jpeg, bytes / 4, box, bounds, 0, height, width, steps, count, colour, planar, other)) abort();
  made += !refused;
  free(jpeg), free(pixels), free(other);
}

static void fuzz(char **rest) {
  (void)rest;
  int most = draw(50) ? 60 : 3000, height = 1 + draw(most), widest = 200000 / height < most ? 200000 / height : most;
  int width = 1 + draw(widest), count = draw(5);
  size_t bytes = (size_t)height * width * 3;
  double *steps = malloc(count * NUMBERS * sizeof *steps + !count);
  uint8_t *pixels = malloc(bytes), *other = malloc(bytes), *colour = malloc(3);
  for (size_t i = 0; i < bytes; i++) pixels[i] = i % 64 ? (uint8_t)(pixels[i - i % 64] + i) : draw(256);
  for (int c = 0; c < 3; c++) colour[c] = draw(256);
  memcpy(other, pixels, bytes);
  for (int n = 0; n < count; n++) choose_step(steps + n * NUMBERS, height, width);
  trainyard_vectors(512);
  int refused = trainyard_change(pixels, height, width, steps, count, colour);
  trainyard_vectors(0);
  if (trainyard_change(other, height, width, steps, count, colour) != refused) abort();
  if (memcmp(pixels, other, bytes)) abort();
  look_at(pixels, bytes);
  for (int n = 0; n < count && !refused; n++) each[(int)steps[n * NUMBERS]]++;
  trainyard_vectors(512 * (int)draw(2));
  if (!draw(16)) { /* the same size, so that rectangles fit */
    for (int n = 0; n < count; n++) choose_step(steps + n * NUMBERS, 1, 1);
    check_made(steps, count, colour);
  }
  refusals += refused;
  free(steps), free(pixels), free(other), free(colour);
}

int main(int count, char **arguments) {
  if (count != 4) return 2;
  unsigned long long done = repeat(arguments, fuzz);
  printf("%llu inputs, %llu taken, %llu refused, %llu made from a JPEG; steps:", done, done - refusals, refusals, made);
  for (int n = 0; n <= ERASE; n++) printf(" %llu", each[n]);
  printf("; digest %llx\n", (unsigned long long)digest);
  return 0;
}
