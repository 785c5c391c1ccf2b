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
print("version" in c10d._get_handler_names())
if "version" in c10d._get_handler_names():
    c10d._get_handler("version")(Request(), Response())
