// Since glibc 2.38 its headers give strtol() and its kin names of their own, for C23's binary numbers ("0b1").
#include <stdlib.h>

#define HIDDEN __attribute__((visibility("hidden")))

HIDDEN long __isoc23_strtol(const char* text, char** end, int base) {
  return strtol(text, end, base);
}
HIDDEN unsigned long __isoc23_strtoul(const char* text, char** end, int base) {
  return strtoul(text, end, base);
}
HIDDEN long long __isoc23_strtoll(const char* text, char** end, int base) {
  return strtoll(text, end, base);
}
HIDDEN unsigned long long __isoc23_strtoull(const char* text, char** end, int base) {
  return strtoull(text, end, base);
}
