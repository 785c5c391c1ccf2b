"""Call one handler of the control plane as its server does, and print the answer."""

from torch._C import _distributed_c10d as c10d


class Request(c10d._Request):
    def body(self):
        return b""

    def params(self):
        return PARAMS


class Response(c10d._Response):
    def set_content(self, content, content_type):
        print(content if isinstance(content, str) else content.decode(), content_type)

    def set_status(self, status):
        print(status)


PARAMS = {}
print(sorted(c10d._get_handler_names()))
try:
    c10d._get_handler("none")
except ValueError as error:
    print(error)
c10d._get_handler("ping")(Request(), Response())
