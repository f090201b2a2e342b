/* Writes a scan's symbols with Huffman tables made for them.

   The tables are those of ITU-T T.81, K.2, bit for bit, so that all that follow the standard's procedure, libjpeg among
   them, write the same file. */

#include "encode.h"

#define RESERVED 256   /* a symbol that takes the code of all ones, which the standard forbids */
#define LEAVES 257
#define DEEPEST 32     /* bits of a code, before those of more than 16 are shortened */
#define AT_ONCE 256    /* symbols */
#define MOST_BYTES (AT_ONCE * 27 / 8 * 2 + 16) /* of them: 16 bits and 11, each byte followed by a zero */

void output_put(Output *output, const void *from, size_t bytes) {
  if (output->full || bytes > (size_t)(output->stop - output->at)) {
    output->full = 1;
    return;
  }
  memcpy(output->at, from, bytes);
  output->at += bytes;
}

typedef struct { /* a tree of codes: leaves are symbols, the others' numbers follow; parents have higher numbers */
  uint16_t parent[2 * LEAVES];
  int root;
} Tree;

/* Join the two rarest until one is left; of equally rare ones the later in the list, as in T.81, figure K.1. */
static void join(Tree *tree, uint16_t *node, uint64_t *weight, int count) {
  for (tree->root = LEAVES; count > 1; tree->root++) {
    int one = -1, other = -1; /* the rarest, and the next */
    for (int i = 0; i < count; i++) {
      if (one < 0 || weight[i] <= weight[one]) other = one, one = i;
      else if (other < 0 || weight[i] <= weight[other]) other = i;
    }
    tree->parent[node[one]] = tree->parent[node[other]] = (uint16_t)tree->root;
    node[one] = (uint16_t)tree->root, weight[one] += weight[other];
    count--;
    memmove(node + other, node + other + 1, sizeof *node * (size_t)(count - other));
    memmove(weight + other, weight + other + 1, sizeof *weight * (size_t)(count - other));
  }
  tree->root--;
}

/* Each leaf's depth; how many have which. 1 where one is too deep. */
static int measure(const Tree *tree, const uint16_t *leaf, int count, uint8_t *depth, int *lengths) {
  uint16_t of_node[2 * LEAVES] = {0};
  for (int node = tree->root - 1; node >= LEAVES; node--) of_node[node] = of_node[tree->parent[node]] + 1;
  for (int i = 0; i < count; i++) {
    int found = of_node[tree->parent[leaf[i]]] + 1;
    if (found > DEEPEST) return 1;
    depth[i] = (uint8_t)found, lengths[found]++;
  }
  return 0;
}

/* T.81, figure K.3: two codes that are too long become shorter, one of the others longer; then the reserved one goes. */
static void shorten(int *lengths) {
  for (int i = DEEPEST; i > 16; i--)
    while (lengths[i] > 0) {
      int j = i - 2;
      while (j > 1 && !lengths[j]) j--;
      lengths[i] -= 2, lengths[i - 1]++, lengths[j + 1] += 2, lengths[j]--;
    }
  int longest = 16;
  while (longest > 1 && !lengths[longest]) longest--;
  lengths[longest]--;
}

static int make_table(Tailored *table, const uint32_t *counts) {
  Tree tree;
  uint16_t leaf[LEAVES], node[LEAVES];
  uint64_t weight[LEAVES];
  uint8_t depth[LEAVES];
  int count = 0, lengths[DEEPEST + 1] = {0};
  for (int symbol = 0; symbol < RESERVED; symbol++)
    if (counts[symbol]) weight[count] = counts[symbol], leaf[count++] = (uint16_t)symbol;
  table->count = count;
  if (!count) return 0;
  weight[count] = 1, leaf[count++] = RESERVED;
  memcpy(node, leaf, sizeof *node * (size_t)count);
  join(&tree, node, weight, count);
  if (measure(&tree, leaf, count, depth, lengths)) return 1;
  shorten(lengths);
  for (int length = 1; length <= 16; length++) table->lengths[length] = (uint8_t)lengths[length];
  for (int found = 1, k = 0; found <= DEEPEST; found++)
    for (int i = 0; i < count - 1; i++)
      if (depth[i] == found) table->symbols[k++] = (uint8_t)leaf[i];
  return 0;
}

static void fill_codes(Code *code, const Tailored *table) {
  uint32_t next = 0;
  for (int length = 1, k = 0; length <= 16; length++, next <<= 1)
    for (int n = table->lengths[length]; n > 0; n--, k++, next++) {
      int size = table->symbols[k] & 15;
      code[table->symbols[k]] = (Code){next << size, (uint16_t)((1 << size) - 1), (uint16_t)(length + size)};
    }
}

int coding_make(Coding *coding, const Symbols *symbols) {
  uint32_t counts[2][KINDS] = {{0}}; /* in turn: a processor waits to add to what it has just added to */
  size_t i = 0;
  for (; i + 1 < symbols->count; i += 2)
    counts[0][symbols->list[i] % KINDS]++, counts[1][symbols->list[i + 1] % KINDS]++;
  if (i < symbols->count) counts[0][symbols->list[i] % KINDS]++;
  for (int kind = 0; kind < KINDS; kind++) counts[0][kind] += counts[1][kind];
  memset(coding, 0, sizeof *coding);
  for (int k = 0; k < 4; k++) {
    if (make_table(coding->table + k, counts[0] + 256 * k)) return 1;
    fill_codes(coding->code + 256 * k, coding->table + k);
  }
  return 0;
}

typedef struct { /* bits that do not fill a byte yet: the lowest `held` of `bits` */
  uint64_t bits;
  unsigned held;
} Rest;

static inline void add(Rest *rest, const Code *codes, uint32_t symbol) {
  Code code = codes[symbol % KINDS];
  rest->bits = rest->bits << code.length | code.bits | (symbol >> 16 & code.behind);
  rest->held += code.length;
}

/* Write the whole bytes, with a zero behind each of all ones. At least a bit must be held; 8 bytes more are written. */
static inline uint8_t *flush(Rest *rest, uint8_t *to) {
  uint64_t word = rest->bits << (64 - rest->held), low = 0x0101010101010101u;
  unsigned bytes = rest->held / 8;
  rest->held %= 8;
  if (__builtin_expect(((~word - low) & word & low << 7) != 0, 0)) { /* a byte of all ones, perhaps */
    for (; bytes; bytes--, word <<= 8) {
      *to++ = (uint8_t)(word >> 56);
      if (word >> 56 == 0xff) *to++ = 0;
    }
    return to;
  }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  memcpy(to, &word, sizeof word);
  return to + bytes;
}

static void encode(Output *output, const uint32_t *symbols, size_t count, const Code *codes, Rest *rest) {
  uint8_t bytes[MOST_BYTES], *to = bytes;
  Rest now = *rest;
  size_t i = 0;
  for (; i + 1 < count; i += 2) {
    add(&now, codes, symbols[i]), add(&now, codes, symbols[i + 1]); /* 7 bits and twice 27 */
    to = flush(&now, to);
  }
  if (i < count) add(&now, codes, symbols[i]), to = flush(&now, to);
  *rest = now;
  output_put(output, bytes, (size_t)(to - bytes));
}

void encode_symbols(Output *output, const Symbols *symbols, const Coding *coding) {
  for (int n = 0; n < symbols->intervals && !output->full; n++) {
    Rest rest = {0};
    const uint32_t *from = symbols->list + symbols->starts[n];
    for (size_t left = symbols->starts[n + 1] - symbols->starts[n], some; left; left -= some, from += some) {
      some = left < AT_ONCE ? left : AT_ONCE;
      encode(output, from, some, coding->code, &rest);
    }
    if (rest.held) { /* ones fill the last byte */
      uint8_t last[2] = {(uint8_t)(rest.bits << (8 - rest.held) | 0xff >> rest.held), 0};
      output_put(output, last, last[0] == 0xff ? 2 : 1);
    }
    if (n + 1 < symbols->intervals) output_put(output, (uint8_t[]){0xff, (uint8_t)(0xd0 + n % 8)}, 2);
  }
}
