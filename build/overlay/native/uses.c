/* Finds code of a library that reaches given addresses directly: calls, jumps, and loads and stores relative to the
 * instruction pointer. x86-64 only.
 *
 * Arguments: the file, then OFFSET SIZE ADDRESS of each section with code. Standard input: addresses in hexadecimal,
 * sorted, one a line. Output: the address of each use and what it uses, one use a line.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t *wanted;
static size_t count;

static int compare(const void *left, const void *right) {
  uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return (a > b) - (a < b);
}

static void read_wanted(void) {
  size_t room = 0;
  unsigned long long value;
  while (scanf("%llx", &value) == 1) {
    if (count == room) {
      room = room ? 2 * room : 64;
      wanted = realloc(wanted, room * sizeof *wanted);
      if (!wanted) abort();
    }
    wanted[count++] = value;
  }
}

/* Whether the four bytes at `at` are an operand relative to the instruction pointer. */
static int is_operand(const unsigned char *code, size_t at) {
  if (code[at - 1] == 0xe8 || code[at - 1] == 0xe9) return 1; /* call, jmp */
  if (at >= 2 && code[at - 2] == 0x0f && (code[at - 1] & 0xf0) == 0x80) return 1; /* jcc */
  if (at < 2 || (code[at - 1] & 0xc7) != 0x05) return 0; /* ModRM: [rip + disp32] */
  unsigned char opcode = code[at - 2];
  return opcode == 0x8d || opcode == 0x8b || opcode == 0x89 || opcode == 0x8a || opcode == 0x88 || opcode == 0xc6 ||
         opcode == 0xc7 || opcode == 0x80 || opcode == 0x83 || opcode == 0xff || opcode == 0x39 || opcode == 0x3b ||
         opcode == 0xb6 || opcode == 0x10 || opcode == 0x11 || opcode == 0x6f || opcode == 0x7f || opcode == 0x28;
}

/* Bytes between the operand and the next instruction, for instructions that end with a constant. */
static size_t constant_after(const unsigned char *code, size_t at) {
  unsigned char opcode = code[at - 2];
  if (code[at - 1] == 0xe8 || code[at - 1] == 0xe9) return 0;
  return opcode == 0xc7 ? 4 : opcode == 0xc6 || opcode == 0x80 || opcode == 0x83 ? 1 : 0;
}

static void scan(const unsigned char *code, size_t size, uint64_t address) {
  for (size_t at = 2; at + 4 <= size; ++at) {
    if (!is_operand(code, at)) continue;
    int32_t distance;
    memcpy(&distance, code + at, sizeof distance);
    uint64_t target = address + at + 4 + constant_after(code, at) + (int64_t)distance;
    if (target < wanted[0] || target > wanted[count - 1]) continue;
    if (bsearch(&target, wanted, count, sizeof *wanted, compare))
      printf("%llx %llx\n", (unsigned long long)(address + at), (unsigned long long)target);
  }
}

int main(int argc, char **argv) {
  FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
  if (!file) return 2;
  read_wanted();
  for (int i = 2; count && i + 2 < argc; i += 3) {
    size_t size = strtoull(argv[i + 1], NULL, 10);
    unsigned char *code = malloc(size);
    if (!code || fseek(file, strtol(argv[i], NULL, 10), SEEK_SET) || fread(code, 1, size, file) != size) return 3;
    scan(code, size, strtoull(argv[i + 2], NULL, 10));
    free(code);
  }
  return 0;
}
