"""What the preprocessor takes away before a grammar reads a file; each byte of the rest stays where it was."""

from __future__ import annotations

import pytest

from build.porting.preprocessor import variants


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        (b"#if A\nx\n#endif", b"     \nx\n      "),
        (b"\n  # if A\nx\n#else\ny\n#endif\n", b"\n        \nx\n     \n \n      \n"),
        (b"a #b\n#define c \\\n  d\n#e\ne\n", b"a #b\n           \n   \n  \ne\n"),
        (b"/* a\n#if B */\n#c\n", b"/* a\n#if B */\n  \n"),
        (b's = "a\\\n#b";\n#c\n', b's = "a\\\n#b";\n  \n'),
        (b"// a\\\n#b\n#c\n", b"// a\\\n#b\n  \n"),
        (b"#a /* b\nc */ d\ne\n", b"       \n      \ne\n"),
        (b"#a /* b\nc\n", b"   /* b\nc\n"),
    ],
)
def test_directives_are_taken_away(code: bytes, plain: bytes) -> None:
    assert variants(code)[0].plain == plain


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        (b"a = '\"'; b", [b"'\"'"]),
        (b'R"(")" "', [b'R"(")"', b'"']),
        (b'u8R"x(")")x" ]', [b'u8R"x(")")x"']),
        (b'aR"(b" c', [b'"(b"']),
        (b'RR"(b" c)" d', [b'"(b"', b'" d']),
        (b'8R"(b" c', [b'"(b"']),
        (b"1'000 + 0x1'f + a1'b'", [b"'b'"]),
        (b"/* a **/ b */ /* c", [b"/* a **/", b"/* c"]),
        (b"a // b \\\nc\nd", [b"// b \\\nc"]),
    ],
)
def test_texts_are_found(code: bytes, texts: list[bytes]) -> None:
    [variant] = variants(code)
    assert [code[start:end] for start, end in variant.texts] == texts


@pytest.mark.parametrize(
    ("code", "read"),
    [
        (b"class A_API Name {", b"class       Name {"),
        (b"subclass A_API Name {", b"subclass A_API Name {"),
        (b"struct A_API(x) a; enum ABC\n b; union A_C c;", b"struct          a; enum    \n b; union     c;"),
        (b"enum class A_API Name : int {", b"enum class       Name : int {"),
        (b"A_API int f();\n\tstatic B_C x(y)\n", b"      int f();\n\tstatic     x(y)\n"),
        (b"x = A_API int;", b"x = A_API int;"),
        (b"f<<<a, b>>>(c);", b"f          (c);"),
    ],
)
def test_macros_are_taken_away(code: bytes, read: bytes) -> None:
    assert variants(code)[0].code == read


def test_letters_in_texts_are_not_counted() -> None:
    [variant] = variants(b"f(a, \"(((\", ')'); // (\n/* ( */ g(")
    assert [variant.count(letter) for letter in (b"(", b")", b"x")] == [2, 1, 0]
