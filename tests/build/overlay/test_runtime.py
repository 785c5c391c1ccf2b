"""The overlay binds nothing newer than the official wheel does, and what replaces newer functions behaves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from build.overlay import checks, link, runtime, toolchain
from build.overlay.build import build_overlay
from build.overlay.runtime import Export, beyond, ceiling, choose, parse, prepare
from build.wheels.platforms import platform_tag
from tests.build.overlay import little as lt
from tests.build.overlay.little import NCCL_CPP, Little, shell

pytestmark = pytest.mark.usefixtures("module_cache")

#: Uses what compilers since GCC 10 bind to functions of new libraries; `exercise` tells what behaved.
MODERN = r"""
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>
using namespace std::chrono_literals;

// Not std::thread: PyTorch's libraries export its new parts, and those of the miniature do not.
template <class F>
struct Thread {
  F body;
  pthread_t id;
  static void* run(void* self) { static_cast<Thread*>(self)->body(); return nullptr; }
  explicit Thread(F body) : body(body) { pthread_create(&id, nullptr, run, this); }
  void join() { pthread_join(id, nullptr); }
};
static bool times_out() {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock<std::mutex> lock(mutex);
  const auto start = std::chrono::steady_clock::now();
  const bool woken = changed.wait_for(lock, 20ms, [] { return false; });
  return !woken && std::chrono::steady_clock::now() - start >= 20ms;
}
static bool is_over(std::condition_variable& changed, std::unique_lock<std::mutex>& lock) {
  return changed.wait_until(lock, std::chrono::steady_clock::time_point{}) == std::cv_status::timeout;
}
static bool is_woken() {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::unique_lock<std::mutex> lock(mutex);
  if (!is_over(changed, lock)) return false;
  Thread other([&] { usleep(50000); std::lock_guard<std::mutex> guard(mutex); done = true; changed.notify_all(); });
  const bool woken = changed.wait_for(lock, 3600s, [&] { return done; });
  lock.unlock();
  other.join();
  return woken;
}
static bool future_times_out() {
  std::promise<int> promise;
  auto future = promise.get_future();
  if (future.wait_until(std::chrono::steady_clock::now() + 20ms) != std::future_status::timeout) return false;
  Thread other([&] { usleep(50000); promise.set_value(7); });  // when the other waits
  const bool ready = future.wait_until(std::chrono::steady_clock::now() + 3600s) == std::future_status::ready;
  other.join();
  return ready && future.get() == 7;
}
struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  Counted(const Counted&) { ++alive; }
  ~Counted() { --alive; }
};
static bool pointers_count() {
  {
    std::exception_ptr first;
    try { throw Counted(); } catch (...) { first = std::current_exception(); }
    std::exception_ptr second = first, third = std::move(first);
    first = second;
    if (first != third || Counted::alive != 1) return false;
    second = nullptr;
    try { std::rethrow_exception(third); } catch (const Counted&) { if (Counted::alive != 1) return false; }
  }
  return Counted::alive == 0;
}
struct Watcher {
  int* seen;
  ~Watcher() { *seen = std::uncaught_exceptions(); }
};
static bool uncaught_are_counted() {
  int seen = -1;
  try { Watcher watcher{&seen}; throw 1; } catch (int) {}
  return seen == 1 && std::uncaught_exceptions() == 0;
}
static bool too_long_throws(long size) {
  try { delete[] new long[size]; } catch (const std::bad_alloc&) { return true; }
  return false;
}
static bool states(const char* path) {
  struct stat found;
  return stat(path, &found) == 0 && S_ISDIR(found.st_mode) && lstat(path, &found) == 0 && stat("/none", &found) == -1;
}
extern "C" __attribute__((visibility("default"))) int exercise() {
  const bool good[] = {times_out(), is_woken(), future_times_out(), pointers_count(), uncaught_are_counted(),
                       too_long_throws(-1), states("/")};
  int wrong = 0;
  for (unsigned i = 0; i < sizeof good; ++i) wrong |= !good[i] << i;
  return wrong;
}
"""
_MAIN = 'extern "C" int exercise(); int main() { return exercise(); }\n'
#: An old C library, as far as `native/compat` can tell.
_OLD = 'extern "C" void* dlsym(void*, const char*) { return nullptr; }\n'


@pytest.mark.parametrize(
    ("have", "old", "newer"),
    [
        (["GLIBC_2.2.5", "GLIBC_2.34"], "GLIBC_2.2.5", None),
        (["GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"], "GLIBC_2.17", None),
        (["GLIBC_2.30", "GLIBC_2.34"], None, "GLIBC_2.30"),
        (["GLIBC_PRIVATE"], None, None),
        ([""], "", None),
    ],
)
def test_the_newest_version_within_the_limit_is_chosen(have: list[str], old: str | None, newer: str | None) -> None:
    chosen, rest = choose((Export("f", "FUNC", version) for version in have), {"GLIBC": (2, 17)})
    assert {name: item.version for name, item in chosen.items()} == ({} if old is None else {"f": old})
    assert {name: item.version for name, item in rest.items()} == ({} if newer is None else {"f": newer})


def test_versions_are_numbers() -> None:
    assert parse("GLIBCXX_3.4.9") < parse("GLIBCXX_3.4.19")  # type: ignore[operator]
    assert parse("CXXABI_TM_1") is None


def test_an_overlay_needs_no_newer_system_than_the_wheel(
    little: Little, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = {NCCL_CPP: (little.tree / NCCL_CPP).read_text() + MODERN}
    inputs = lt.inputs(little, tmp_path / "tree", edits)
    made = build_overlay(inputs, tmp_path / "new")
    limit = ceiling([little.wheel / "torch" / "lib" / "libtorch_cuda.so"])
    # Of std::promise; PyTorch's own libraries export it, those of the miniature do not.
    assert beyond(made.path, limit) == ["__cxa_init_primary_exception@CXXABI_1.3.11"]
    assert checks.check_age(inputs, made.path) in made.checks
    # The same objects, linked as a compiler does it by itself.
    monkeypatch.setattr(link, "prepare", lambda *_: [])
    plain = link.link(inputs, made.objects, tmp_path / "plain.so")
    assert any(name.startswith("pthread_") for name in beyond(plain, limit))
    tags = [tuple(map(int, platform_tag(path).split("_")[1:3])) for path in (made.path, plain)]
    assert tags[0] < tags[1]


@pytest.mark.usefixtures("own_cache")
def test_it_is_made_once_for_wheels_of_one_age(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise AssertionError("it is made again")

    tools = toolchain.find(9)
    made = prepare(tools, [])
    monkeypatch.setattr(runtime, "make", fails)
    assert prepare(tools, []) == made
    monkeypatch.setitem(runtime._OLDEST, "GLIBC", (2, 28))
    with pytest.raises(AssertionError, match="made again"):
        prepare(tools, [])


@pytest.mark.parametrize("old", [False, True], ids=["this C library", "an old C library"])
def test_what_replaces_newer_functions_behaves(tmp_path: Path, old: bool) -> None:
    system = prepare(toolchain.find(9), [])
    lt.write(tmp_path, {"modern.cpp": MODERN, "main.cpp": _MAIN + (_OLD if old else "")})
    # The stubs come with the names of the real libraries, which are loaded when the program runs.
    options = ["-std=c++17", "-O2", "-fPIC", "-DNDEBUG", *system[:-1], "-lstdc++", "-lm", "-lgcc_s", "-lc"]
    sources = [tmp_path / "main.cpp", tmp_path / "modern.cpp"]
    program = tmp_path / "program"
    shell("g++", *sources, *options, "-o", program)
    needs = beyond(program, ceiling([]))
    assert not [name for name in needs if name.startswith(("pthread_cond_clockwait", "_ZSt19uncaught", "stat@"))], needs
    done = subprocess.run([program], timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, f"bits of what failed: {done.returncode:b}"
