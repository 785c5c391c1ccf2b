"""A change that upstream has in another form is not put in twice.

Each example is made after a real one: the port of a Debian patch that its maintainer decided otherwise.
"""

from __future__ import annotations

import pytest

from .sessions import nothing_put_in, ported

#: Each: the old code, the same patched, and the new code, which has the change in another form.
FORMS = {
    "a name was given another prefix": (
        """\
int write_all(struct session *session)
{
  int result = 0;
  write_head(session);
  return result;
}
""",
        """\
int write_all(struct session *session)
{
  int result = 0;
  struct dynbuf buffer;
  Sess_dyn_init(&buffer, SESSION_MAX_LENGTH);
  if(Sess_dyn_add(&buffer, session->name))
    return 1;
  write_head(session);
  return result;
}
""",
        """\
int write_all(struct session *session)
{
  int result = 0;
  write_head(session);
  struct dynbuf buffer;
  sessx_dyn_init(&buffer, SESSION_MAX_LENGTH);
  if(sessx_dyn_add(&buffer, session->name))
    return 1;
  return result;
}
""",
    ),
    "a call has other line breaks, and the code around it was re-indented": (
        """\
void notify(struct session *session, int code)
{
  emit_signal(session->bus, session->path, code);
}
""",
        """\
void notify(struct session *session, int code)
{
  if (session->listeners != NULL && session->running) {
    emit_signal(session->bus, session->path, code);
  }
}
""",
        """\
void notify(struct session *session, int code)
{
  if (session->listeners != NULL &&
      session->running &&
      !session->quiet) {
    emit_signal(session->bus, session->path, code);
  }
}
""",
    ),
    "an argument was added on a line of its own": (
        """\
void subscribe(struct session *session)
{
  session->id = bus_subscribe(session->bus,
                              session->path,
                              on_changed);
}
""",
        """\
void subscribe(struct session *session)
{
  session->id = bus_subscribe(session->bus,
                              session->path,
                              session_owner_name(session),
                              on_changed);
}
""",
        """\
void subscribe(struct session *session)
{
  session->id = bus_subscribe(session->bus, session_owner_name (session),
                              session->path,
                              on_changed);
}
""",
    ),
    "a block stands further down in the function": (
        """\
int receive(struct session *session)
{
  int type = read_type(session);
  count_received(session, type);
  session->last = type;
  return dispatch(session, type);
}
""",
        """\
int receive(struct session *session)
{
  int type = read_type(session);
  if (type < TYPE_FIRST || type > TYPE_LAST) {
    log_error("session %s: type %d is not known", session->name, type);
    return disconnect(session, ERROR_PROTOCOL);
  }
  count_received(session, type);
  session->last = type;
  return dispatch(session, type);
}
""",
        """\
int receive(struct session *session)
{
  int type = read_type(session);
  count_received(session, type);
  session->last = type;
  if (type < TYPE_FIRST || type > TYPE_LAST) {
    log_error("session %s: type %d is not known", session->name, (int)type);
    return disconnect(session, ERROR_PROTOCOL);
  }
  return dispatch(session, type);
}
""",
    ),
    "prototypes are wrapped in another way": (
        """\
int session_nonce(struct session *session);
void session_wipe(struct session *session);
""",
        """\
int session_nonce(struct session *session);
int _session_compute_secret(struct number *h, const struct number *q,
\t\t\t    const struct number *x, int algorithm, const unsigned char *digest);
void session_wipe(struct session *session);
""",
        """\
int session_nonce(struct session *session);
void session_wipe(struct session *session);
int _session_compute_secret(struct number *h,
\t\t\t    const struct number *q, const struct number *x,
\t\t\t    int algorithm, const uint8_t *digest);
""",
    ),
    "a second release of the same pointer": (
        """\
static int key_of(struct session *session)
{
  char *fingerprint = find_fingerprint(session);
  if(compare(fingerprint, session->pinned))
    return 1;
  return 0;
}
""",
        """\
static int key_of(struct session *session)
{
  char *fingerprint = find_fingerprint(session);
  if(compare(fingerprint, session->pinned))
    return 1;
  free(fingerprint);
  return 0;
}
""",
        """\
static int key_of(struct session *session)
{
  char *fingerprint = find_fingerprint(session);
  int differs = compare(fingerprint, session->pinned);

  free(fingerprint);
  if(differs)
    return 1;
  return 0;
}
""",
    ),
    "a branch whose bracket is taken for the one below": (
        """\
int bind_all(struct session *session)
{
  if (session->domain) {
    if (session->ld == NULL) {
      log_failed(session->name, strerror(errno));
    }
    path = convert_domain_to_bind_path(session->domain);
  }
  if (session->url) {
    return bind_url(session, path);
  }
  return 0;
}
""",
        """\
int bind_all(struct session *session)
{
  if (session->domain) {
    if (session->ld == NULL) {
      log_failed(session->name, strerror(errno));
    }
    if (session->lbind) {
      path = xstrdup(session->lbind);
    } else {
      path = convert_domain_to_bind_path(session->domain);
    }
  }
  if (session->url) {
    return bind_url(session, path);
  }
  return 0;
}
""",
        """\
int bind_all(struct session *session)
{
  if (session->domain) {
    if (session->ld == nullptr) {
      log_failed(session->name, strerror(errno));
    }
    if (session->lbind) {
      path = xstrdup(session->lbind);
    } else {
      path = convert_domain_to_bind_path(session->domain);
    }
  }
  if (session->url) {
    return bind_url(session, path);
  }
  return 0;
}
""",
    ),
    "a limit in a loop, with another text in its message": (
        """\
static void follow_check(struct session *session, void *data)
{
  if (session->trusted) {
    if (session->next != session->end) {
      session->source = session->indirect;
      session_check(session->list, follow_check, data);
      return;
    }
  }
  resume_check(session);
}
""",
        """\
static void follow_check(struct session *session, void *data)
{
  if (session->trusted) {
    if (session->next != session->end) {
      session->source = session->indirect;
      if (++session->hop_number < FORWARDED_FOR_HOP_MAX) {
        session_check(session->list, follow_check, data);
        return;
      }
      log_error(28, "ignoring trailing addresses", session->hop_number, session->indirect);
    }
  }
  resume_check(session);
}
""",
        """\
static void follow_check(struct session *session, void *data)
{
  if (session->trusted) {
    if (session->next != session->end) {
      session->source = session->indirect;
      if (++session->hop_number < FORWARDED_FOR_HOP_MAX) {
        session_check(session->list, follow_check, data);
        return;
      }
      const auto name = header_name(FORWARDED_FOR);
      log_error(28, "ERROR: ignoring trailing addresses of", name, session->hop_number, session->indirect);
    }
  }
  resume_check(session);
}
""",
    ),
    "an include that replaced its neighbour": (
        '#include "errors.h"\n#include <xsize.h>\n\nint session_default = 1;\n',
        '#include "errors.h"\n#include <xsize.h>\n#include "xalloc-oversized.h"\n\nint session_default = 1;\n',
        '#include "errors.h"\n#include "xalloc-oversized.h"\n\nint session_default = 1;\n',
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_upstream_has_in_another_form_is_not_put_in(form: str) -> None:
    old, patched, new = FORMS[form]
    nothing_put_in(ported(old, patched, new), new)


def test_a_list_that_goes_on_gets_no_entry_out_of_order() -> None:
    def versions(numbers: list[int]) -> str:
        return "static int patches[] = {\n" + "".join(f"/**/\n    {n},\n" for n in numbers) + "/**/\n    0\n};\n"

    old, new = versions([2434, 2433, 2432]), versions([2440, 2439, 2438, 2437, 2436, 2435, 2434, 2433, 2432])
    nothing_put_in(ported(old, versions([2436, 2434, 2433, 2432]), new), new)
