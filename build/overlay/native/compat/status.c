// stat() and its kin are functions of the C library since glibc 2.33; before, programs called these.
#define _GNU_SOURCE
#include <sys/stat.h>

#define HIDDEN __attribute__((visibility("hidden")))
#define LAYOUT 1  // _STAT_VER of x86_64

int __xstat(int, const char*, struct stat*);
int __lxstat(int, const char*, struct stat*);
int __fxstat(int, int, struct stat*);
int __fxstatat(int, int, const char*, struct stat*, int);

HIDDEN int stat(const char* path, struct stat* found) {
  return __xstat(LAYOUT, path, found);
}
HIDDEN int lstat(const char* path, struct stat* found) {
  return __lxstat(LAYOUT, path, found);
}
HIDDEN int fstat(int file, struct stat* found) {
  return __fxstat(LAYOUT, file, found);
}
HIDDEN int fstatat(int folder, const char* path, struct stat* found, int flags) {
  return __fxstatat(LAYOUT, folder, path, found, flags);
}
HIDDEN int stat64(const char* path, struct stat64* found) {
  return __xstat(LAYOUT, path, (struct stat*)found);
}
HIDDEN int lstat64(const char* path, struct stat64* found) {
  return __lxstat(LAYOUT, path, (struct stat*)found);
}
HIDDEN int fstat64(int file, struct stat64* found) {
  return __fxstat(LAYOUT, file, (struct stat*)found);
}
