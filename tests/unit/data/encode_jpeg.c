/* Encodes pixels as JPEGs of kinds that Pillow cannot write: for tests.

   encode_jpeg WIDTH HEIGHT COMPONENTS QUALITY SAMPLING INTERVAL KIND < pixels > file
   SAMPLING: horizontal and vertical factors of each component, such as 2x1,1x1,1x1. KIND: letters of b (baseline),
   p (progressive), i (progressive, of which the last scans are missing), s (a scan for each component), a (arithmetic
   coding), o (optimized tables), r (RGB in the file), e (an orientation in EXIF), c (CMYK, with 4 components). */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

int main(int count, char **words) {
  (void)count;
  struct jpeg_compress_struct jpeg;
  struct jpeg_error_mgr errors;
  const char *kind = words[7], *factors = words[5];
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  jpeg_stdio_dest(&jpeg, stdout);
  jpeg.image_width = atoi(words[1]);
  jpeg.image_height = atoi(words[2]);
  jpeg.input_components = atoi(words[3]);
  jpeg.in_color_space = strchr(kind, 'c') ? JCS_CMYK : jpeg.input_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  if (strchr(kind, 'r')) jpeg_set_colorspace(&jpeg, JCS_RGB);
  jpeg_set_quality(&jpeg, atoi(words[4]), TRUE);
  for (int c = 0; c < jpeg.num_components; c++, factors += 4) {
    jpeg.comp_info[c].h_samp_factor = factors[0] - '0';
    jpeg.comp_info[c].v_samp_factor = factors[2] - '0';
  }
  jpeg.restart_interval = atoi(words[6]);
  jpeg.arith_code = strchr(kind, 'a') != NULL;
  jpeg.optimize_coding = strchr(kind, 'o') != NULL;
  if (strpbrk(kind, "pi")) jpeg_simple_progression(&jpeg);
  if (strchr(kind, 'i')) jpeg.num_scans -= 3;
  jpeg_scan_info scans[4];
  memset(scans, 0, sizeof scans);
  for (int c = 0; c < 4; c++) scans[c] = (jpeg_scan_info){.comps_in_scan = 1, .component_index = {c}, .Se = 63};
  if (strchr(kind, 's')) jpeg.scan_info = scans, jpeg.num_scans = jpeg.num_components;
  jpeg_start_compress(&jpeg, TRUE);
  const JOCTET turned[] = "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
  if (strchr(kind, 'e')) jpeg_write_marker(&jpeg, JPEG_APP0 + 1, turned, sizeof turned - 1);
  size_t bytes = (size_t)jpeg.image_width * jpeg.input_components;
  JSAMPROW row = malloc(bytes);
  while (jpeg.next_scanline < jpeg.image_height) {
    if (fread(row, 1, bytes, stdin) != bytes) return 1;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  free(row);
  return 0;
}
