"""A change that upstream has in another form is not put in twice, in Python.

Each example is made after a real one: the port of a Debian patch that its maintainer decided otherwise.
"""

from __future__ import annotations

import pytest

from .code import port

#: Each: the old code, the same patched, and the new code, which has the change in another form.
FORMS = {
    "quotes and wrapping of Python": (
        """\
class Lookup:
    def process(self, value):
        if self.rhs_is_direct:
            return self.prepare(value)
        return value
""",
        """\
class Lookup:
    def process(self, value):
        if not value.isidentifier():
            raise ValueError('The key %r of the lookup is not valid.' % (value,))
        if self.rhs_is_direct:
            return self.prepare(value)
        return value
""",
        """\
class Lookup:
    def process(self, value):
        if self.rhs_is_direct:
            return self.prepare(value)
        value = self.normalise(value)
        if not value.isidentifier():
            raise ValueError(
                "The key %r of the lookup is not valid." % (value,),
            )
        return value
""",
    ),
    "a method, and a `try`, with other quotes and in another order": (
        """\
class AddressValidator:
    message = 'Enter a valid address.'

    def __call__(self, value):
        if not value or '@' not in value:
            raise ValidationError(self.message)
        user, domain = value.rsplit('@', 1)
        if not self.domain_regex.match(domain):
            raise ValidationError(self.message)

    def __eq__(self, other):
        return self.message == other.message
""",
        """\
class AddressValidator:
    message = 'Enter a valid address.'

    def __call__(self, value):
        if not value or '@' not in value:
            raise ValidationError(self.message)
        user, domain = value.rsplit('@', 1)
        try:
            domain = punycode(domain)
        except UnicodeError:
            raise ValidationError(self.message)
        if not self.domain_regex.match(domain):
            raise ValidationError(self.message)

    def validate_domain_part(self, domain):
        if self.domain_regex.match(domain):
            return True
        literal = self.literal_regex.match(domain)
        return bool(literal and is_address(literal.group(1)))

    def __eq__(self, other):
        return self.message == other.message
""",
        """\
class AddressValidator:
    message = "Enter a valid address."

    def validate_domain_part(self, domain):
        if self.domain_regex.match(domain):
            return True
        literal = self.literal_regex.match(domain)
        return bool(literal and is_address(literal.group(1)))

    def __call__(self, value):
        if not value or "@" not in value:
            raise ValidationError(self.message, params={"value": value})
        user, domain = value.rsplit("@", 1)
        try:
            domain = punycode(domain)
        except UnicodeError:
            raise ValidationError(self.message, params={"value": value})
        if not self.domain_regex.match(domain):
            raise ValidationError(self.message, params={"value": value})

    def __eq__(self, other):
        return self.message == other.message
""",
    ),
    "upstream's lines are indented deeper": (
        """\
class ValuesTests:
    def test_values_of_related(self):
        result = self.query.values('author__name')
        self.assertEqual(len(result), 3)
""",
        """\
class ValuesTests:
    def test_values_of_related(self):
        result = self.query.values('author__name')
        self.assertEqual(len(result), 3)

    def test_alias_with_forbidden_characters(self):
        message = 'Column aliases cannot contain whitespace or quotation marks.'
        with self.assertRaisesMessage(ValueError, message):
            self.query.annotate(**{'injected name': 1}).values('author__name')
""",
        """\
class ValuesTests:
    def test_values_of_related(self):
        result = self.query.values('author__name')
        self.assertEqual(len(result), 3)

    def test_alias_with_forbidden_characters(self):
        message = 'Column aliases cannot contain whitespace or quotation marks.'
        for name in FORBIDDEN:
            with self.subTest(name):
                with self.assertRaisesMessage(ValueError, message):
                    self.query.annotate(**{name: 1}).values('author__name')
""",
    ),
}

HEAD = """\
import re

from project.errors import ValidationError


"""
TAIL = """\


def loaded(name):
    return REGISTRY[name]
"""


@pytest.mark.parametrize("form", FORMS)
def test_what_upstream_has_in_another_form_is_not_put_in(form: str) -> None:
    old, patched, new = (HEAD + code + TAIL for code in FORMS[form])
    found = port(old, patched, new)
    assert found.new.decode() == new, [h.evidence for h in found.hunks]
